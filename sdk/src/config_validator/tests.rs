//! The validator's hooks, called as Envoy would.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use super::exported::*;
use super::*;
use crate::testing::{buffer, fake_callbacks, install, with_fake};
use std::ptr;

const ENVOY: *mut c_void = ptr::without_provenance_mut(64);

struct Validator;

impl ConfigValidatorConfig for Validator {
    fn validate(
        &self,
        _context: &ConfigValidatorContext,
        type_url: &str,
        resources: &[ConfigValidatorResource],
    ) -> Result<(), String> {
        assert!(type_url != "panic", "in validate");
        Err(format!("{type_url} {resources:?}"))
    }

    fn validate_delta(
        &self,
        _context: &ConfigValidatorContext,
        _type_url: &str,
        added_resources: &[ConfigValidatorResource],
        removed_resources: &[&str],
    ) -> Result<(), String> {
        match added_resources {
            [] => Err(removed_resources.join(",")),
            _ => Ok(()),
        }
    }
}

fn validator() -> *const c_void {
    install(fake_callbacks());
    FACTORY.set_for_thread(Some(|_, config| (config != b"reject").then(|| Box::new(Validator) as _)));
    // SAFETY: null buffers are allowed.
    unsafe {
        let refused = envoy_dynamic_module_on_config_validator_config_new(ENVOY, EB::EMPTY, buffer(b"reject"));
        assert!(refused.is_null());
        envoy_dynamic_module_on_config_validator_config_new(ENVOY, EB::EMPTY, EB::EMPTY)
    }
}

fn resource(name: &[u8]) -> RawResource {
    RawResource {
        name: buffer(name),
        version: EB::EMPTY,
        aliases: ptr::null(),
        aliases_count: 3,
        has_ttl: true,
        ttl_milliseconds: 1500,
        has_resource: true,
        serialized_resource: EB::EMPTY,
    }
}

#[test]
fn a_resource_arrives_whole_and_a_rejection_carries_its_reason() {
    let (validator, resources) = (validator(), [resource(b"a\xff")]);
    // SAFETY: everything outlives the hook.
    let accepted = unsafe {
        envoy_dynamic_module_on_config_validator_validate(ENVOY, validator, buffer(b"t"), resources.as_ptr(), 1)
    };
    assert!(!accepted);
    let expected = "t [ConfigValidatorResource { name: \"a\u{fffd}\", version: \"\", aliases: [], ttl: Some(1.5s), resource: Some([]) }]";
    assert_eq!(with_fake(|fake| fake.rejection.take()).as_deref(), Some(expected));
}

#[test]
fn a_panic_or_a_null_object_never_rejects_an_update() {
    let validator = validator();
    // SAFETY: null arrays are allowed.
    unsafe {
        assert!(envoy_dynamic_module_on_config_validator_validate(ENVOY, validator, buffer(b"panic"), ptr::null(), 4));
        assert!(envoy_dynamic_module_on_config_validator_validate(ENVOY, ptr::null(), EB::EMPTY, ptr::null(), 0));
    }
    assert_eq!(with_fake(|fake| fake.rejection.take()), None);
}

#[test]
fn a_delta_update_names_what_was_removed() {
    let (validator, removed, added) = (validator(), [buffer(b"x"), EB::EMPTY], [resource(b"y")]);
    // SAFETY: everything outlives the hooks.
    let (only_removed, with_added) = unsafe {
        let hook = envoy_dynamic_module_on_config_validator_validate_delta;
        (
            hook(ENVOY, validator, EB::EMPTY, ptr::null(), 0, removed.as_ptr(), 2),
            hook(ENVOY, validator, EB::EMPTY, added.as_ptr(), 1, removed.as_ptr(), 2),
        )
    };
    assert!(!only_removed && with_added);
    assert_eq!(with_fake(|fake| fake.rejection.take()).as_deref(), Some("x,"));
    // SAFETY: alive.
    unsafe { envoy_dynamic_module_on_config_validator_config_destroy(validator) };
}
