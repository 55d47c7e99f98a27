//! The HTTP filter's hooks, called as Envoy would.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use super::exported::*;
use super::*;
use crate::abi::{
    envoy_dynamic_module_type_envoy_buffer as EB,
    envoy_dynamic_module_type_http_filter_stream_reset_reason as StreamResetReason,
    envoy_dynamic_module_type_on_http_filter_local_reply_status as LocalReplyStatus,
    envoy_dynamic_module_type_on_http_filter_request_headers_status as RequestHeadersStatus,
    envoy_dynamic_module_type_on_http_filter_response_headers_status as ResponseHeadersStatus,
};
use crate::buffer::EnvoyBuffer;
use crate::guard::panics_caught;
use crate::scheduler::EnvoyHttpFilterScheduler;
use crate::testing::{buffer, fake_callbacks, install, with_fake};

thread_local! {
    static FILTER: Cell<*const c_void> = const { Cell::new(ptr::null()) };
    static LOCAL_REPLIES: Cell<u32> = const { Cell::new(0) };
    static DROPS: Cell<u32> = const { Cell::new(0) };
    static ROUTE: Cell<*const c_void> = const { Cell::new(ptr::null()) };
    static HELD: RefCell<Option<Arc<HttpPerRouteConfig>>> = const { RefCell::new(None) };
    static SEEN_AFTER_DESTROY: Cell<bool> = const { Cell::new(false) };
    static COMPLETIONS: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

const ENVOY: *mut c_void = ptr::without_provenance_mut(64);
const REQUEST: u32 = 0;
const RESPOND: u64 = 1;
const RESET: u64 = 2;
const PANIC: u64 = 3;

struct Config;
struct Filter;

fn new_config<EC: EnvoyHttpFilterConfig, EHF: EnvoyHttpFilter>(
    envoy: &mut EC,
    _name: &str,
    config: &[u8],
) -> Option<Box<dyn HttpFilterConfig<EHF>>> {
    match config {
        b"panic" => panic!("in the constructor"),
        b"reject" => return None,
        _ => {}
    }
    assert!(envoy.define_counter("requests").is_ok());
    Some(Box::new(Config))
}

impl<EHF: EnvoyHttpFilter> HttpFilterConfig<EHF> for Config {
    fn new_http_filter(&self, envoy: &mut EHF) -> Box<dyn HttpFilter<EHF>> {
        let panics = envoy.get_request_header_value("x-panic-in-new").is_some();
        assert!(!panics, "in new_http_filter");
        Box::new(Filter)
    }
}

impl<EHF: EnvoyHttpFilter> HttpFilter<EHF> for Filter {
    fn on_request_headers(&mut self, envoy: &mut EHF, _end: bool) -> RequestHeadersStatus {
        let action = envoy.get_request_header_value("x-do").map(|v| v.as_slice().to_vec()).unwrap_or_default();
        match action.as_slice() {
            b"panic" => panic!("in on_request_headers"),
            b"respond" => {
                envoy.send_response(418, &[("a", b"b")], None, None);
                RequestHeadersStatus::StopIteration
            }
            b"destroyed" => {
                // SAFETY: what Envoy up to 1.39 does in the middle of a hook.
                unsafe { envoy_dynamic_module_on_http_filter_destroy(FILTER.get()) };
                let blind = envoy.get_request_header_value("x-do").is_none();
                SEEN_AFTER_DESTROY.set(!blind);
                assert_eq!(DROPS.get(), 0, "the filter was dropped under its own hook");
                RequestHeadersStatus::StopIteration
            }
            b"route" => {
                HELD.set(envoy.get_most_specific_route_config());
                RequestHeadersStatus::Continue
            }
            b"schedule" => {
                envoy.new_scheduler().commit(9);
                RequestHeadersStatus::Continue
            }
            b"connection" => {
                let id = envoy.get_upstream_connection_id();
                envoy.set_dynamic_metadata_string("t", "id", &id.to_string());
                RequestHeadersStatus::Continue
            }
            b"remove" => {
                assert!(envoy.set_request_header("x-kept", b"") && envoy.remove_request_header("x-do"));
                RequestHeadersStatus::Continue
            }
            b"" => RequestHeadersStatus::Continue,
            _ => RequestHeadersStatus::StopAllIterationAndBuffer,
        }
    }

    fn on_response_headers(&mut self, _envoy: &mut EHF, _end: bool) -> ResponseHeadersStatus {
        ResponseHeadersStatus::StopAllIterationAndBuffer
    }

    fn on_scheduled(&mut self, envoy: &mut EHF, event_id: u64) {
        match event_id {
            RESPOND => envoy.send_response(418, &[], None, None),
            RESET => envoy.reset_stream(StreamResetReason::LocalReset, "over"),
            _ => panic!("in on_scheduled"),
        }
        COMPLETIONS.with_borrow_mut(|seen| seen.push("scheduled"));
    }

    fn on_stream_complete(&mut self, envoy: &mut EHF) {
        let told = envoy.get_request_header_value("x-do").is_some();
        COMPLETIONS.with_borrow_mut(|seen| seen.push(if told { "complete" } else { "complete, destroyed" }));
    }

    fn on_local_reply(
        &mut self,
        _envoy: &mut EHF,
        _code: u32,
        _details: EnvoyBuffer,
        _reset: bool,
    ) -> LocalReplyStatus {
        LOCAL_REPLIES.set(LOCAL_REPLIES.get() + 1);
        LocalReplyStatus::ContinueAndResetStream
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        DROPS.set(DROPS.get() + 1);
    }
}

fn setup() {
    install(fake_callbacks());
    FACTORY.set_for_thread(Some(new_config));
}

fn config(bytes: &[u8]) -> *const c_void {
    // SAFETY: the buffers outlive the hook.
    unsafe { envoy_dynamic_module_on_http_filter_config_new(ENVOY, buffer(b"retry"), buffer(bytes)) }
}

/// A filter, and the answer of its request-headers hook with header `x-do`.
fn request(action: &[u8]) -> (*const c_void, u32) {
    setup();
    with_fake(|fake| fake.headers.insert((REQUEST, b"x-do".to_vec()), action.to_vec()));
    // SAFETY: made just now; never freed, so it outlives its filters.
    let filter = unsafe { envoy_dynamic_module_on_http_filter_new(config(b""), ENVOY) };
    FILTER.set(filter);
    // SAFETY: alive.
    let status = unsafe { envoy_dynamic_module_on_http_filter_request_headers(ENVOY, filter, true) };
    (filter, status)
}

#[test]
fn a_filters_answer_reaches_envoy_and_it_is_dropped_once() {
    let (filter, status) = request(b"stop");
    assert_eq!(status, 3, "StopAllIterationAndBuffer is 3");
    // SAFETY: alive.
    unsafe { envoy_dynamic_module_on_http_filter_destroy(filter) };
    assert_eq!(DROPS.get(), 1);
}

#[test]
fn a_refused_or_panicking_constructor_rejects_the_configuration() {
    setup();
    assert!(config(b"reject").is_null());
    let before = panics_caught();
    assert!(config(b"panic").is_null(), "a panic while loading must reject the configuration");
    assert!(panics_caught() > before);
    assert!(!config(b"").is_null());
    FACTORY.set_for_thread(None);
    assert!(config(b"").is_null(), "an extension point without a constructor must refuse");
}

#[test]
fn after_a_panic_the_filter_is_inert_and_the_request_goes_on() {
    let (filter, status) = request(b"panic");
    assert_eq!(status, 0, "a panic must answer Continue");
    with_fake(|fake| fake.headers.insert((REQUEST, b"x-do".to_vec()), b"stop".to_vec()));
    // SAFETY: alive.
    let again = unsafe { envoy_dynamic_module_on_http_filter_request_headers(ENVOY, filter, true) };
    assert_eq!(again, 0, "a filter that panicked must not run again");
    // SAFETY: alive.
    unsafe { envoy_dynamic_module_on_http_filter_destroy(filter) };
    assert_eq!(DROPS.get(), 1, "an inert filter must still be dropped");
}

#[test]
fn a_panic_while_a_filter_is_made_gives_an_inert_filter_not_null() {
    setup();
    with_fake(|fake| fake.headers.insert((REQUEST, b"x-panic-in-new".to_vec()), b"1".to_vec()));
    // SAFETY: made just now.
    let filter = unsafe { envoy_dynamic_module_on_http_filter_new(config(b""), ENVOY) };
    assert!(!filter.is_null(), "Envoy up to 1.39 calls hooks on a null filter");
    // SAFETY: alive.
    unsafe {
        assert_eq!(envoy_dynamic_module_on_http_filter_request_headers(ENVOY, filter, true), 0);
        envoy_dynamic_module_on_http_filter_destroy(filter);
    }
}

#[test]
fn a_null_filter_continues() {
    setup();
    // SAFETY: null is allowed.
    unsafe {
        assert_eq!(envoy_dynamic_module_on_http_filter_request_headers(ENVOY, ptr::null(), true), 0);
        envoy_dynamic_module_on_http_filter_destroy(ptr::null());
        envoy_dynamic_module_on_http_filter_config_destroy(ptr::null());
    }
}

#[test]
fn a_hook_inside_a_hook_gets_the_default_answer() {
    setup();
    with_fake(|fake| {
        fake.during_send_response = Some(|| {
            // SAFETY: alive; Envoy does this within `send_response`.
            let status =
                unsafe { envoy_dynamic_module_on_http_filter_local_reply(ENVOY, FILTER.get(), 418, EB::EMPTY, false) };
            with_fake(|fake| fake.gauges.insert("nested".into(), u64::from(status)));
        });
    });
    let (filter, status) = request(b"respond");
    assert_eq!(status, 1);
    assert_eq!(with_fake(|fake| (fake.responses.clone(), fake.gauges.get("nested").copied())), (vec![418], Some(0)));
    assert_eq!(LOCAL_REPLIES.get(), 0, "the busy filter was entered a second time");
    // SAFETY: alive, and idle again.
    let status = unsafe { envoy_dynamic_module_on_http_filter_local_reply(ENVOY, filter, 503, EB::EMPTY, false) };
    assert_eq!((status, LOCAL_REPLIES.get()), (1, 1), "an idle filter must see local replies");
}

#[test]
fn a_filter_destroyed_inside_its_hook_lives_until_the_hook_returns() {
    let (_, status) = request(b"destroyed");
    assert_eq!(status, 1, "the hook's own answer must survive");
    assert_eq!(DROPS.get(), 1, "the deferred drop must happen, once");
    assert!(!SEEN_AFTER_DESTROY.get(), "a call reached an Envoy object that is gone");
}

#[test]
fn a_scheduler_is_deleted_exactly_once() {
    request(b"schedule");
    with_fake(|fake| {
        assert_eq!(fake.commits, [9]);
        assert_eq!((fake.handles_made, fake.live_handles.len()), (1, 0), "the scheduler leaked");
        assert!(fake.log.iter().all(|(level, _)| *level < 5), "deleted twice: {:?}", fake.log);
    });
}

#[test]
fn a_callback_of_a_later_envoy_is_unanswered_on_an_earlier_one() {
    let key = (b"t".to_vec(), b"id".to_vec());
    with_fake(|fake| fake.upstream_connection_id = 42);
    request(b"connection");
    assert_eq!(with_fake(|fake| fake.metadata.remove(&key)), Some(b"42".to_vec()));

    let (filter, _) = request(b"");
    install(crate::abi::Callbacks { http_get_upstream_connection_id: None, ..fake_callbacks() });
    with_fake(|fake| fake.headers.insert((REQUEST, b"x-do".to_vec()), b"connection".to_vec()));
    // SAFETY: alive.
    unsafe { envoy_dynamic_module_on_http_filter_request_headers(ENVOY, filter, true) };
    assert_eq!(with_fake(|fake| fake.metadata.remove(&key)), Some(b"0".to_vec()));
}

#[test]
fn a_header_is_removed_by_a_null_pointer_and_emptied_by_an_empty_value() {
    with_fake(|fake| fake.headers.insert((REQUEST, b"x-kept".to_vec()), b"1".to_vec()));
    request(b"remove");
    with_fake(|fake| {
        assert!(!fake.headers.contains_key(&(REQUEST, b"x-do".to_vec())), "Envoy after 1.40 would keep this header");
        assert_eq!(fake.headers.get(&(REQUEST, b"x-kept".to_vec())), Some(&Vec::new()));
    });
}

/// Envoy's end of a stream inside a hook of its filter: up to 1.39 it destroys the filter there too.
fn stream_ends() {
    // SAFETY: alive.
    unsafe { envoy_dynamic_module_on_http_filter_stream_complete(ENVOY, FILTER.get()) };
}

fn stream_ends_and_is_destroyed() {
    stream_ends();
    // SAFETY: alive; Envoy uses it no more.
    unsafe { envoy_dynamic_module_on_http_filter_destroy(FILTER.get()) };
}

#[test]
fn a_stream_that_ends_inside_its_filters_hook_is_complete_afterwards() {
    for event in [RESPOND, RESET] {
        let (filter, _) = request(b"hold");
        with_fake(|fake| fake.during_send_response = Some(stream_ends));
        // SAFETY: alive.
        unsafe { envoy_dynamic_module_on_http_filter_scheduled(ENVOY, filter, event) };
        assert_eq!(COMPLETIONS.take(), ["scheduled", "complete"], "the end of the stream was lost, or came twice");
        // SAFETY: alive.
        unsafe { envoy_dynamic_module_on_http_filter_destroy(filter) };
    }
    assert_eq!((COMPLETIONS.take().len(), DROPS.get()), (0, 2));
}

#[test]
fn a_stream_that_is_destroyed_inside_its_filters_hook_is_complete_before_the_drop() {
    let (filter, _) = request(b"hold");
    with_fake(|fake| fake.during_send_response = Some(stream_ends_and_is_destroyed));
    // SAFETY: alive.
    unsafe { envoy_dynamic_module_on_http_filter_scheduled(ENVOY, filter, RESPOND) };
    assert_eq!(COMPLETIONS.take(), ["scheduled", "complete, destroyed"]);
    assert_eq!(DROPS.get(), 1, "the deferred drop must happen, once");
}

#[test]
fn after_a_panic_a_stream_that_was_held_goes_on() {
    let (filter, status) = request(b"hold");
    assert_eq!(status, 3);
    // SAFETY: alive.
    unsafe {
        assert_eq!(envoy_dynamic_module_on_http_filter_response_headers(ENVOY, filter, false), 3);
        envoy_dynamic_module_on_http_filter_scheduled(ENVOY, filter, PANIC);
    }
    let continued = || with_fake(|fake| std::mem::take(&mut fake.continued));
    assert_eq!(continued(), ["request", "response"], "the stream waits for a filter that runs no more");
    let (filter, _) = request(b"");
    // SAFETY: alive.
    unsafe { envoy_dynamic_module_on_http_filter_scheduled(ENVOY, filter, PANIC) };
    assert!(continued().is_empty(), "what was never held must not be continued");
}

#[test]
fn after_a_panic_a_stream_that_ends_is_not_continued() {
    let (filter, _) = request(b"hold");
    // SAFETY: alive.
    unsafe {
        envoy_dynamic_module_on_http_filter_local_reply(ENVOY, filter, 503, EB::EMPTY, false);
        envoy_dynamic_module_on_http_filter_scheduled(ENVOY, filter, PANIC);
    }
    assert!(with_fake(|fake| fake.continued.is_empty()), "the reply is on its way: nothing is to be resumed");
}

#[test]
fn per_route_configuration_outlives_envoys_reference() {
    unsafe extern "C" fn route_config(_: *mut c_void) -> *const c_void {
        ROUTE.get()
    }
    let (filter, _) = request(b"");
    install(crate::abi::Callbacks { get_most_specific_route_config: Some(route_config), ..fake_callbacks() });
    PER_ROUTE_FACTORY.set_for_thread(Some(|_, config| (config != b"reject").then(|| Box::new(config.to_vec()) as _)));
    with_fake(|fake| fake.headers.insert((REQUEST, b"x-do".to_vec()), b"route".to_vec()));
    let held = |filter| {
        // SAFETY: alive.
        unsafe { envoy_dynamic_module_on_http_filter_request_headers(ENVOY, filter, true) };
        HELD.with_borrow(|held| held.as_ref().and_then(|held| held.downcast_ref::<Vec<u8>>()).cloned())
    };
    assert_eq!(held(filter), None, "a null pointer is no configuration");
    // SAFETY: the buffers outlive the hook; null and non-UTF-8 names are allowed.
    let (made, refused) = unsafe {
        (
            envoy_dynamic_module_on_http_filter_per_route_config_new(buffer(b"\xff"), buffer(b"mine")),
            envoy_dynamic_module_on_http_filter_per_route_config_new(EB::EMPTY, buffer(b"reject")),
        )
    };
    assert!(!made.is_null() && refused.is_null());
    let foreign = 7_u64;
    ROUTE.set((&raw const foreign).cast());
    assert_eq!(held(filter), None, "another module's configuration under our name was followed");
    ROUTE.set(made);
    assert_eq!(held(filter).as_deref(), Some(&b"mine"[..]));
    // SAFETY: made just now; Envoy gives it up.
    unsafe { envoy_dynamic_module_on_http_filter_per_route_config_destroy(made) };
    let still = HELD.with_borrow(|held| held.as_ref().and_then(|held| held.downcast_ref::<Vec<u8>>()).cloned());
    assert_eq!(still.as_deref(), Some(&b"mine"[..]), "a stream in flight lost its route's configuration");
}
