//! The callback table and the enums.

use std::ffi::{CStr, c_void};
use std::ptr;

use super::*;

const PRESENT: *mut c_void = ptr::without_provenance_mut(64);

fn resolve(lookup: impl Fn(&str) -> bool) -> Result<Callbacks, &'static str> {
    let lookup = |name: &CStr| {
        let known = name.to_str().is_ok_and(&lookup);
        if known { PRESENT } else { ptr::null_mut() }
    };
    // SAFETY: the table's functions are never called here.
    unsafe { Callbacks::resolve(lookup) }
}

#[test]
fn a_later_envoys_callbacks_are_optional() {
    let later = ["http_get_upstream_connection_id", "log_v2", "config_validator_set_rejection_message"];
    let table = resolve(|name| !later.iter().any(|l| name.ends_with(l)) || name.contains("network"));
    let table = table.map(|t| (t.http_get_upstream_connection_id.is_some(), t.log.is_some()));
    assert_eq!(table, Ok((false, true)), "Envoy 1.38 must be good enough");
}

#[test]
fn a_missing_callback_of_the_floor_is_named() {
    let missing = "envoy_dynamic_module_callback_http_set_header";
    assert_eq!(resolve(|name| name != missing).err(), Some(missing));
}

#[test]
fn without_envoy_calls_give_their_defaults() {
    assert!(!crate::is_log_enabled(envoy_dynamic_module_type_log_level::Critical));
    crate::envoy_log_info!("this goes nowhere");
}

#[test]
fn a_process_without_envoy_refuses_the_module() {
    let version = crate::__private::program_init(|| true, crate::__private::Factories::default());
    assert!(version.is_null(), "a test binary exports no callbacks");
}

#[test]
fn an_unknown_number_from_envoy_is_no_variant() {
    use envoy_dynamic_module_type_http_callout_result as Result;
    assert_eq!(Result::from_raw(1), Some(Result::Reset));
    assert_eq!(Result::from_raw(u32::MAX), None);
}
