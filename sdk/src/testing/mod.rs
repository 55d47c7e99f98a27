//! Fakes for tests without Envoy.
//!
//! The table and the constructors set here are the calling thread's own, so tests run side by side.

mod fakes;

use std::cell::Cell;

pub use fakes::{FakeEnvoy, buffer, fake_callbacks, with_fake};

pub use crate::__private::{Factories, hooks};
use crate::abi::Callbacks;

thread_local! {
    static TABLE: Cell<Option<&'static Callbacks>> = const { Cell::new(None) };
    static FACTORIES: Cell<Option<Factories>> = const { Cell::new(None) };
}

/// Puts a table of fake callbacks in force for this thread.
pub fn install(table: Callbacks) {
    TABLE.set(Some(Box::leak(Box::new(table))));
}

/// Puts constructors in force for this thread, as the `declare_*` macros do for the process.
pub fn install_factories(factories: Factories) {
    FACTORIES.set(Some(factories));
}

pub(crate) fn table() -> Option<&'static Callbacks> {
    TABLE.try_with(Cell::get).ok().flatten()
}

pub(crate) fn factories() -> Option<Factories> {
    FACTORIES.try_with(Cell::get).ok().flatten()
}
