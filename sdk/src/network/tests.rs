//! The network filter's hooks, called as Envoy would.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr;

use super::exported::*;
use super::*;
use crate::abi::{
    envoy_dynamic_module_type_envoy_buffer as EB, envoy_dynamic_module_type_network_connection_close_type as CloseType,
    envoy_dynamic_module_type_network_connection_event as ConnectionEvent,
    envoy_dynamic_module_type_on_network_filter_data_status as DataStatus,
};
use crate::testing::{buffer, fake_callbacks, install, with_fake};
use crate::{EnvoyCounterId, EnvoyNetworkFilterScheduler};

thread_local! {
    static PANIC_IN_DROP: Cell<bool> = const { Cell::new(false) };
    static FILTER: Cell<*const c_void> = const { Cell::new(ptr::null()) };
    static EVENTS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

const PANIC: u64 = 3;
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
        if event == ConnectionEvent::Connected {
            envoy.close_with_details(CloseType::NoFlush, "removed");
        }
    }

    fn on_scheduled(&mut self, envoy: &mut ENF, event_id: u64) {
        assert!(event_id != PANIC, "in on_scheduled");
        envoy.close_with_details(CloseType::NoFlush, "removed");
        EVENTS.with_borrow_mut(|events| events.push("scheduled".into()));
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
    FACTORY.set_for_thread(Some(new_config));
    // SAFETY: null and non-UTF-8 buffers are allowed.
    unsafe {
        let config = envoy_dynamic_module_on_network_filter_config_new(ENVOY, buffer(b"f\xff"), EB::EMPTY);
        assert!(!config.is_null());
        let filter = envoy_dynamic_module_on_network_filter_new(config, ENVOY);
        FILTER.set(filter);
        filter
    }
}

fn events() -> Vec<String> {
    EVENTS.take()
}

#[test]
fn hooks_reach_the_filter_and_its_calls_reach_envoy() {
    let filter = filter();
    assert_eq!(events(), ["f\u{fffd} []"], "names are converted lossily, null configurations are empty");
    // SAFETY: alive.
    unsafe {
        assert_eq!(envoy_dynamic_module_on_network_filter_new_connection(ENVOY, filter), 1);
        envoy_dynamic_module_on_network_filter_event(ENVOY, filter, 2);
        envoy_dynamic_module_on_network_filter_event(ENVOY, filter, 77);
    }
    assert_eq!(events(), ["Connected"], "an event of a later Envoy's must not be taken for one that is known");
    with_fake(|fake| {
        assert_eq!(fake.counters.get(&0), Some(&1));
        assert_eq!(fake.metadata.values().next().unwrap(), b"7");
        assert_eq!(fake.closes.first(), Some(&(1, "removed".to_owned())));
        assert_eq!((fake.handles_made, fake.live_handles.len()), (1, 0), "the scheduler leaked");
    });
}

#[test]
fn on_destroy_runs_before_the_drop_and_cannot_reach_envoy() {
    let filter = filter();
    let _ = events();
    // SAFETY: alive.
    unsafe { envoy_dynamic_module_on_network_filter_destroy(filter) };
    assert_eq!(events(), ["destroy", "drop"]);
    assert!(with_fake(|fake| fake.closes.is_empty()), "a call reached a connection that is gone");
}

#[test]
fn after_a_panic_bytes_flow_on() {
    let filter = filter();
    // SAFETY: alive.
    unsafe {
        assert_eq!(envoy_dynamic_module_on_network_filter_write(ENVOY, filter, 5, false), 0);
        assert_eq!(envoy_dynamic_module_on_network_filter_new_connection(ENVOY, filter), 0, "an inert filter ran");
        let _ = events();
        envoy_dynamic_module_on_network_filter_destroy(filter);
    }
    assert_eq!(events(), ["drop"], "an inert filter gets no on_destroy, but is dropped");
}

#[test]
fn a_panic_in_a_filters_drop_stays_in_the_module() {
    let filter = filter();
    PANIC_IN_DROP.set(true);
    let before = crate::guard::panics_caught();
    // SAFETY: alive.
    unsafe { envoy_dynamic_module_on_network_filter_destroy(filter) };
    assert!(crate::guard::panics_caught() > before);
}

/// What Envoy does inside the module's call to `close`.
fn raises_the_event() {
    // SAFETY: alive.
    unsafe { envoy_dynamic_module_on_network_filter_event(ENVOY, FILTER.get(), 1) };
}

#[test]
fn a_connection_that_the_filter_closes_tells_it_so_afterwards() {
    let filter = filter();
    let _ = events();
    with_fake(|fake| fake.during_close = Some(raises_the_event));
    // SAFETY: alive.
    unsafe { envoy_dynamic_module_on_network_filter_scheduled(ENVOY, filter, 0) };
    assert_eq!(events(), ["scheduled", "LocalClose"], "the event of the filter's own close was lost, or came twice");
}

#[test]
fn after_a_panic_a_connection_that_was_stopped_reads_on() {
    let filter = filter();
    // SAFETY: alive.
    unsafe {
        assert_eq!(envoy_dynamic_module_on_network_filter_new_connection(ENVOY, filter), 1);
        envoy_dynamic_module_on_network_filter_scheduled(ENVOY, filter, PANIC);
    }
    assert_eq!(with_fake(|fake| fake.continued.clone()), ["reading"], "the connection waits for ever");
}

#[test]
fn a_filter_may_be_destroyed_on_a_thread_that_commits() {
    let filter = filter().expose_provenance();
    let dropped = std::thread::spawn(move || {
        // SAFETY: alive, and used by nobody else.
        unsafe { envoy_dynamic_module_on_network_filter_destroy(ptr::with_exposed_provenance(filter)) };
        events()
    });
    assert_eq!(dropped.join().unwrap(), ["destroy", "drop"]);
}
