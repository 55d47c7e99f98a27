//! A user's constructor for one extension point: set once, by the macro that declares the module.

use std::sync::OnceLock;

/// One constructor.
pub(crate) struct Factory<F>(OnceLock<F>);

// === impl Factory ===

impl<F: Copy + 'static> Factory<F> {
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Sets the process's constructor; later calls change nothing.
    pub(crate) fn set(&self, make: Option<F>) {
        if let Some(make) = make {
            let _ = self.0.set(make);
        }
    }

    /// The constructor in force; none logs that the module lacks this `part`.
    pub(crate) fn get(&self, part: &str) -> Option<F> {
        #[cfg(test)]
        if let Some(make) = tests::of_this_thread(self) {
            return make;
        }
        let make = self.0.get().copied();
        if make.is_none() {
            crate::envoy_log_error!("this module has no {part}");
        }
        make
    }
}

#[cfg(test)]
mod tests {
    use std::any::Any;
    use std::cell::RefCell;
    use std::collections::HashMap;

    use super::*;

    thread_local! {
        static SET: RefCell<HashMap<usize, Box<dyn Any>>> = RefCell::default();
    }

    impl<F: Copy + 'static> Factory<F> {
        /// Puts a constructor, or none, in force for this thread, so that tests run side by side.
        pub(crate) fn set_for_thread(&self, make: Option<F>) {
            SET.with_borrow_mut(|set| set.insert((&raw const *self).addr(), Box::new(make)));
        }
    }

    pub(super) fn of_this_thread<F: Copy + 'static>(factory: &Factory<F>) -> Option<Option<F>> {
        SET.with_borrow(|set| set.get(&(&raw const *factory).addr())?.downcast_ref::<Option<F>>().copied())
    }
}
