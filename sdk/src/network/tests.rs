//! The network filter's hooks, called as Envoy would.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr;

use super::exported::*;
use super::*;
use crate::abi::{
    envoy_dynamic_module_type_envoy_buffer as EB,
    envoy_dynamic_module_type_network_connection_close_type as CloseType,
};
use crate::testing::{Factories, buffer, fake_callbacks, install, install_factories, with_fake};
use crate::{EnvoyCounterId, EnvoyNetworkFilterScheduler};

thread_local! {
    static PANIC_IN_DROP: Cell<bool> = const { Cell::new(false) };
    static EVENTS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

const ENVOY: *mut c_void = ptr::without_provenance_mut(64);

struct Config(EnvoyCounterId);
struct Filter(EnvoyCounterId);

fn new_config<EC: EnvoyNetworkFilterConfig, ENF: EnvoyNetworkFilter>(
    envoy: &mut EC,
    name: &str,
    config: &[u8],
) -> Option<Box<dyn NetworkFilterConfig<ENF>>> {
    EVENTS.with_borrow_mut(|events| events.push(format!("{name} {config:?}")));
    Some(Box::new(Config(envoy.define_counter("tunnels").ok()?)))
}

impl<ENF: EnvoyNetworkFilter> NetworkFilterConfig<ENF> for Config {
    fn new_network_filter(&self, _envoy: &mut ENF) -> Box<dyn NetworkFilter<ENF>> {
        Box::new(Filter(self.0))
    }
}

impl<ENF: EnvoyNetworkFilter> NetworkFilter<ENF> for Filter {
    fn on_new_connection(&mut self, envoy: &mut ENF) -> DataStatus {
        envoy.increment_counter(self.0, 1).unwrap();
        envoy.set_dynamic_metadata_string("guard", "generation", "7");
        envoy.new_scheduler().commit(1);
        DataStatus::StopIteration
    }

    fn on_write(&mut self, _envoy: &mut ENF, _length: usize, _end: bool) -> DataStatus {
        panic!("in on_write")
    }

    fn on_event(&mut self, envoy: &mut ENF, event: ConnectionEvent) {
        EVENTS.with_borrow_mut(|events| events.push(format!("{event:?}")));
        envoy.close_with_details(CloseType::NoFlush, "removed");
    }

    fn on_destroy(&mut self, envoy: &mut ENF) {
        envoy.close_with_details(CloseType::Abort, "from on_destroy");
        EVENTS.with_borrow_mut(|events| events.push("destroy".into()));
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        EVENTS.with_borrow_mut(|events| events.push("drop".into()));
        assert!(!PANIC_IN_DROP.get(), "in drop");
    }
}

fn filter() -> *const c_void {
    install(fake_callbacks());
    install_factories(Factories {
        network: Some(new_config),
        ..Factories::default()
    });
    // SAFETY: null and non-UTF-8 buffers are allowed.
    unsafe {
        let config =
            envoy_dynamic_module_on_network_filter_config_new(ENVOY, buffer(b"f\xff"), EB::EMPTY);
        assert!(!config.is_null());
        envoy_dynamic_module_on_network_filter_new(config, ENVOY)
    }
}

fn events() -> Vec<String> {
    EVENTS.take()
}

#[test]
fn hooks_reach_the_filter_and_its_calls_reach_envoy() {
    let filter = filter();
    assert_eq!(
        events(),
        ["f\u{fffd} []"],
        "names are converted lossily, null configurations are empty"
    );
    // SAFETY: alive.
    unsafe {
        assert_eq!(
            envoy_dynamic_module_on_network_filter_new_connection(ENVOY, filter),
            1
        );
        envoy_dynamic_module_on_network_filter_event(ENVOY, filter, 0);
        envoy_dynamic_module_on_network_filter_event(ENVOY, filter, 77);
    }
    assert_eq!(events(), ["RemoteClose", "Unknown(77)"]);
    with_fake(|fake| {
        assert_eq!(fake.counters.get(&0), Some(&1));
        assert_eq!(fake.metadata.values().next().unwrap(), b"7");
        assert_eq!(fake.closes.first(), Some(&(1, "removed".to_owned())));
        assert_eq!(
            (fake.handles_made, fake.live_handles.len()),
            (1, 0),
            "the scheduler leaked"
        );
    });
}

#[test]
fn on_destroy_runs_before_the_drop_and_cannot_reach_envoy() {
    let filter = filter();
    let _ = events();
    // SAFETY: alive.
    unsafe { envoy_dynamic_module_on_network_filter_destroy(filter) };
    assert_eq!(events(), ["destroy", "drop"]);
    assert!(
        with_fake(|fake| fake.closes.is_empty()),
        "a call reached a connection that is gone"
    );
}

#[test]
fn after_a_panic_bytes_flow_on() {
    let filter = filter();
    // SAFETY: alive.
    unsafe {
        assert_eq!(
            envoy_dynamic_module_on_network_filter_write(ENVOY, filter, 5, false),
            0
        );
        assert_eq!(
            envoy_dynamic_module_on_network_filter_new_connection(ENVOY, filter),
            0,
            "an inert filter ran"
        );
        let _ = events();
        envoy_dynamic_module_on_network_filter_destroy(filter);
    }
    assert_eq!(
        events(),
        ["drop"],
        "an inert filter gets no on_destroy, but is dropped"
    );
}

#[test]
fn a_panic_in_a_filters_drop_stays_in_the_module() {
    let filter = filter();
    PANIC_IN_DROP.set(true);
    let before = crate::panics_caught();
    // SAFETY: alive.
    unsafe { envoy_dynamic_module_on_network_filter_destroy(filter) };
    assert!(crate::panics_caught() > before);
}
