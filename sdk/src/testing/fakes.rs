//! A small fake Envoy: one per thread, reached through the callback table.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::abi::{
    Callbacks, Ptr, envoy_dynamic_module_type_envoy_buffer as EB, envoy_dynamic_module_type_module_buffer as MB,
    envoy_dynamic_module_type_module_http_header as MH,
};
use crate::buffer::slice_or_empty;

/// What the fake knows, and what the module did to it.
#[derive(Default)]
pub(crate) struct FakeEnvoy {
    /// Headers of all kinds, by kind (`abi.h`'s number) and name.
    pub(crate) headers: BTreeMap<(u32, Vec<u8>), Vec<u8>>,
    /// Log lines with their levels.
    pub(crate) log: Vec<(u32, String)>,
    /// Names of metrics; a metric's id is its index.
    pub(crate) metrics: Vec<String>,
    /// Sums of what was added to counters, by id.
    pub(crate) counters: BTreeMap<usize, u64>,
    /// Texts in dynamic metadata, by namespace and key.
    pub(crate) metadata: BTreeMap<(Vec<u8>, Vec<u8>), Vec<u8>>,
    /// Gauges by full name.
    pub(crate) gauges: BTreeMap<String, u64>,
    /// Schedulers and timers that exist; a double delete panics in the test.
    pub(crate) live_handles: Vec<usize>,
    /// Handles ever made.
    pub(crate) handles_made: usize,
    /// Scheduler commits.
    pub(crate) commits: Vec<u64>,
    /// Id that `get_upstream_connection_id` gives.
    pub(crate) upstream_connection_id: u64,
    /// Details of closes by the module.
    pub(crate) closes: Vec<(u32, String)>,
    /// Directions that the module let go on.
    pub(crate) continued: Vec<&'static str>,
    /// Milliseconds that timers were armed for.
    pub(crate) armed: Vec<u64>,
    /// Statuses of the module's responses.
    pub(crate) responses: Vec<u32>,
    /// Runs inside `send_response` and `reset_stream`, as Envoy runs hooks there.
    pub(crate) during_send_response: Option<fn()>,
    /// Runs inside `close_with_details`, as Envoy raises the event there.
    pub(crate) during_close: Option<fn()>,
    /// Body of the answer to an admin request.
    pub(crate) admin_body: String,
    /// Why an update was rejected.
    pub(crate) rejection: Option<String>,
}

thread_local! {
    static FAKE: RefCell<FakeEnvoy> = RefCell::default();
}

/// Gives access to this thread's fake. Not to be nested.
pub(crate) fn with_fake<R>(body: impl FnOnce(&mut FakeEnvoy) -> R) -> R {
    FAKE.with_borrow_mut(body)
}

/// A buffer in Envoy's shape over the test's own bytes, which must outlive the hook.
pub(crate) fn buffer(bytes: &[u8]) -> EB {
    EB { ptr: bytes.as_ptr(), length: bytes.len() }
}

fn bytes(buffer: MB) -> Vec<u8> {
    // SAFETY: the module's buffers live during the call.
    unsafe { slice_or_empty(buffer.ptr, buffer.length) }.to_vec()
}

fn text(buffer: MB) -> String {
    String::from_utf8_lossy(&bytes(buffer)).into_owned()
}

/// # Safety
/// `out` is null or writable.
unsafe fn put<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: the caller's promise.
        unsafe { out.write(value) };
    }
}

unsafe extern "C" fn log_enabled(_level: u32) -> bool {
    true
}

unsafe extern "C" fn log(level: u32, message: MB) {
    with_fake(|fake| fake.log.push((level, text(message))));
}

unsafe extern "C" fn get_header(_: Ptr, kind: u32, key: MB, out: *mut EB, index: usize, count: *mut usize) -> bool {
    let found = with_fake(|fake| fake.headers.get(&(kind, bytes(key))).map(|value| buffer(value)));
    // SAFETY: the module's out parameters; the fake keeps the value until the header is set anew.
    unsafe {
        put(count, usize::from(found.is_some()));
        put(out, found.filter(|_| index == 0).unwrap_or(EB::EMPTY));
    }
    found.is_some() && index == 0
}

/// As Envoy after 1.40 does: only a null pointer removes.
unsafe extern "C" fn set_header(_: Ptr, kind: u32, key: MB, value: MB) -> bool {
    with_fake(|fake| {
        if value.ptr.is_null() {
            fake.headers.remove(&(kind, bytes(key)))
        } else {
            fake.headers.insert((kind, bytes(key)), bytes(value))
        }
    });
    true
}

unsafe extern "C" fn continue_decoding(_: Ptr) {
    with_fake(|fake| fake.continued.push("request"));
}

unsafe extern "C" fn continue_encoding(_: Ptr) {
    with_fake(|fake| fake.continued.push("response"));
}

unsafe extern "C" fn continue_reading(_: Ptr) {
    with_fake(|fake| fake.continued.push("reading"));
}

unsafe extern "C" fn timer_enable(_: Ptr, milliseconds: u64) {
    with_fake(|fake| fake.armed.push(milliseconds));
}

unsafe extern "C" fn send_response(_: Ptr, status: u32, _: *const MH, _: usize, _: MB, _: MB) {
    let nested = with_fake(|fake| {
        fake.responses.push(status);
        fake.during_send_response
    });
    if let Some(nested) = nested {
        nested();
    }
}

unsafe extern "C" fn reset_stream(_: Ptr, _: u32, _: MB) {
    if let Some(nested) = with_fake(|fake| fake.during_send_response) {
        nested();
    }
}

unsafe extern "C" fn define(_: Ptr, name: MB, _: *const MB, _: usize, id: *mut usize) -> u32 {
    let index = with_fake(|fake| {
        fake.metrics.push(text(name));
        fake.metrics.len() - 1
    });
    // SAFETY: the module's out parameter.
    unsafe { put(id, index) };
    0
}

unsafe extern "C" fn define_plain(owner: Ptr, name: MB, id: *mut usize) -> u32 {
    // SAFETY: passed on.
    unsafe { define(owner, name, std::ptr::null(), 0, id) }
}

unsafe extern "C" fn add(_: Ptr, id: usize, _: *const MB, _: usize, value: u64) -> u32 {
    with_fake(|fake| {
        if id >= fake.metrics.len() {
            return 1;
        }
        let counter = fake.counters.entry(id).or_default();
        *counter = counter.saturating_add(value);
        0
    })
}

unsafe extern "C" fn add_plain(owner: Ptr, id: usize, value: u64) -> u32 {
    // SAFETY: passed on.
    unsafe { add(owner, id, std::ptr::null(), 0, value) }
}

unsafe extern "C" fn set_metadata(_: Ptr, namespace: MB, key: MB, value: MB) {
    with_fake(|fake| fake.metadata.insert((bytes(namespace), bytes(key)), bytes(value)));
}

unsafe extern "C" fn handle_new(_: Ptr) -> Ptr {
    with_fake(|fake| {
        fake.handles_made += 1;
        fake.live_handles.push(fake.handles_made);
        std::ptr::without_provenance_mut(fake.handles_made)
    })
}

unsafe extern "C" fn handle_delete(handle: Ptr) {
    with_fake(|fake| {
        let place = fake.live_handles.iter().position(|live| *live == handle.addr());
        match place {
            Some(place) => drop(fake.live_handles.remove(place)),
            // A panic must not cross this frame; the log is what tests look at.
            None => fake.log.push((5, "a handle was deleted twice".to_owned())),
        }
    });
}

unsafe extern "C" fn commit(_: Ptr, event_id: u64) {
    with_fake(|fake| fake.commits.push(event_id));
}

unsafe extern "C" fn connection_id(_: Ptr) -> u64 {
    with_fake(|fake| fake.upstream_connection_id)
}

unsafe extern "C" fn close_with_details(_: Ptr, kind: u32, details: MB) {
    let nested = with_fake(|fake| {
        fake.closes.push((kind, text(details)));
        fake.during_close
    });
    if let Some(nested) = nested {
        nested();
    }
}

unsafe extern "C" fn gauge_value(_: Ptr, name: MB, out: *mut u64) -> bool {
    let value = with_fake(|fake| fake.gauges.get(&text(name)).copied());
    if let Some(value) = value {
        // SAFETY: the module's out parameter.
        unsafe { put(out, value) };
    }
    value.is_some()
}

unsafe extern "C" fn admin_response(_: Ptr, body: MB) {
    with_fake(|fake| fake.admin_body = text(body));
}

unsafe extern "C" fn reject(_: Ptr, message: MB) {
    with_fake(|fake| fake.rejection = Some(text(message)));
}

/// A table of these fakes; other callbacks are absent, and give their default answers.
pub(crate) fn fake_callbacks() -> Callbacks {
    Callbacks {
        log: Some(log),
        log_enabled: Some(log_enabled),
        http_get_header: Some(get_header),
        http_set_header: Some(set_header),
        http_send_response: Some(send_response),
        http_filter_reset_stream: Some(reset_stream),
        http_filter_continue_decoding: Some(continue_decoding),
        http_filter_continue_encoding: Some(continue_encoding),
        network_filter_continue_reading: Some(continue_reading),
        bootstrap_extension_timer_enable: Some(timer_enable),
        http_get_upstream_connection_id: Some(connection_id),
        http_set_dynamic_metadata_string: Some(set_metadata),
        http_filter_config_define_counter: Some(define),
        http_filter_increment_counter: Some(add),
        http_filter_scheduler_new: Some(handle_new),
        http_filter_scheduler_commit: Some(commit),
        http_filter_scheduler_delete: Some(handle_delete),
        network_set_dynamic_metadata_string: Some(set_metadata),
        network_filter_config_define_counter: Some(define_plain),
        network_filter_increment_counter: Some(add_plain),
        network_filter_get_upstream_connection_id: Some(connection_id),
        network_filter_close_with_details: Some(close_with_details),
        network_filter_scheduler_new: Some(handle_new),
        network_filter_scheduler_commit: Some(commit),
        network_filter_scheduler_delete: Some(handle_delete),
        bootstrap_extension_config_define_counter: Some(define),
        bootstrap_extension_config_increment_counter: Some(add),
        bootstrap_extension_timer_new: Some(handle_new),
        bootstrap_extension_timer_delete: Some(handle_delete),
        bootstrap_extension_config_scheduler_new: Some(handle_new),
        bootstrap_extension_config_scheduler_commit: Some(commit),
        bootstrap_extension_config_scheduler_delete: Some(handle_delete),
        bootstrap_extension_get_gauge_value: Some(gauge_value),
        bootstrap_extension_admin_set_response: Some(admin_response),
        config_validator_set_rejection_message: Some(reject),
        ..Callbacks::EMPTY
    }
}
