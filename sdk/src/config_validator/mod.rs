//! xDS config validator (Envoy 1.40): sees every update of one resource type before it is applied.
//!
//! A panic never rejects an update: it is counted, and the update passes. (The official crate
//! rejects.) A validator has no configuration object on Envoy's side, so it defines no metrics: let
//! it count in atomics that a filter's or an extension's metrics, or an admin page, publish.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ffi::c_void;
use std::time::Duration;

use crate::abi::{
    envoy, envoy_dynamic_module_type_config_validator_resource as RawResource,
    envoy_dynamic_module_type_envoy_buffer as EB,
};
use crate::buffer::{EnvoyBuffer, buffers, slice_or_empty};
use crate::config;
use crate::factory::Factory;
use crate::guard::guard;

/// Makes the configuration object; main thread; `None` rejects the configuration (log why first).
pub type NewConfigValidatorConfigFunction = fn(&str, &[u8]) -> Option<Box<dyn ConfigValidatorConfig>>;

/// One resource of an update. Its bytes end with the hook.
#[derive(Debug, Clone)]
pub struct ConfigValidatorResource<'a> {
    /// The resource's name; may be empty in SotW.
    pub name: Cow<'a, str>,
    /// Its version; in SotW the response's.
    pub version: Cow<'a, str>,
    /// Its other names.
    pub aliases: Vec<Cow<'a, str>>,
    /// Its time to live, if it has one.
    pub ttl: Option<Duration>,
    /// The serialized message; `None` if the envelope had none.
    pub resource: Option<&'a [u8]>,
}

/// The update in progress. What the official crate's has to ask is not in the subset.
#[derive(Debug)]
pub struct ConfigValidatorContext(());

/// A validator. Both hooks run on the main thread, before any watcher sees the update; an `Err`
/// rejects the whole response with that message.
pub trait ConfigValidatorConfig: Send + Sync {
    /// A SotW response: all its resources.
    ///
    /// # Errors
    /// The reason for which Envoy shall reject the update.
    fn validate(
        &self,
        context: &ConfigValidatorContext,
        type_url: &str,
        resources: &[ConfigValidatorResource],
    ) -> Result<(), String>;

    /// A delta response: what was added or changed, and the names of what was removed.
    ///
    /// # Errors
    /// The reason for which Envoy shall reject the update.
    fn validate_delta(
        &self,
        context: &ConfigValidatorContext,
        type_url: &str,
        added_resources: &[ConfigValidatorResource],
        removed_resources: &[&str],
    ) -> Result<(), String>;
}

type Config = Box<dyn ConfigValidatorConfig>;

/// The user's constructor of validators.
pub(crate) static FACTORY: Factory<NewConfigValidatorConfigFunction> = Factory::new();

// === free functions ===

/// # Safety
/// The array, and what its elements point to, lives for `'a`.
unsafe fn resources<'a>(start: *const RawResource, count: usize) -> Vec<ConfigValidatorResource<'a>> {
    let view = |raw: &RawResource| {
        // SAFETY: the caller's promise.
        unsafe {
            ConfigValidatorResource {
                name: EnvoyBuffer::from_raw(raw.name).to_str_lossy(),
                version: EnvoyBuffer::from_raw(raw.version).to_str_lossy(),
                aliases: texts(raw.aliases, raw.aliases_count),
                ttl: raw.has_ttl.then(|| Duration::from_millis(raw.ttl_milliseconds)),
                resource: raw.has_resource.then(|| EnvoyBuffer::from_raw(raw.serialized_resource).bytes()),
            }
        }
    };
    // SAFETY: the caller's promise.
    unsafe { slice_or_empty(start, count) }.iter().map(view).collect()
}

/// # Safety
/// As for [`resources`].
unsafe fn texts<'a>(start: *const EB, count: usize) -> Vec<Cow<'a, str>> {
    // SAFETY: the caller's promise.
    unsafe { buffers(start, count) }.into_iter().map(EnvoyBuffer::to_str_lossy).collect()
}

/// Runs one validation; `true` unless the validator says `Err`.
///
/// # Safety
/// `config` is null or came from `config_new`; `context` is the hook's.
unsafe fn verdict(
    hook: &'static str,
    context: *mut c_void,
    config: *const c_void,
    validate: impl FnOnce(&dyn ConfigValidatorConfig, &ConfigValidatorContext) -> Result<(), String>,
) -> bool {
    let outcome = guard(hook, || {
        // SAFETY: the caller's promise.
        let config = unsafe { config::get::<Config>(config) };
        config.map_or(Ok(()), |config| validate(config.as_ref(), &ConfigValidatorContext(())))
    });
    let Some(Err(reason)) = outcome else {
        return true;
    };
    if !context.is_null() {
        envoy!(config_validator_set_rejection_message(context, reason.as_str().into()) or ());
    }
    false
}

/// The exported hooks, under a path of their own.
pub mod exported {
    use super::*;

    /// Makes a configuration object; null rejects the configuration.
    ///
    /// # Safety
    /// Called by Envoy with the pointers that the ABI promises.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_config_validator_config_new(
        _config_envoy: *mut c_void,
        name: EB,
        config: EB,
    ) -> *const c_void {
        let make = |name: &str, config: &[u8]| -> Option<Config> { FACTORY.get("config validator")?(name, config) };
        // SAFETY: Envoy's promise.
        unsafe { config::create("config_validator_config_new", name, config, make) }
    }

    /// Frees a configuration object.
    ///
    /// # Safety
    /// Called by Envoy, once per object.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_config_validator_config_destroy(config_module: *const c_void) {
        // SAFETY: Envoy's promise.
        unsafe { config::destroy::<Config>("config_validator_config_destroy", config_module) };
    }

    /// A SotW update.
    ///
    /// # Safety
    /// Called by Envoy with the pointers that the ABI promises.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_config_validator_validate(
        context_envoy: *mut c_void,
        config_module: *const c_void,
        type_url: EB,
        start: *const RawResource,
        count: usize,
    ) -> bool {
        // SAFETY: Envoy's promise; everything lives as long as the hook.
        unsafe {
            verdict("config_validator_validate", context_envoy, config_module, |config, context| {
                let type_url = EnvoyBuffer::from_raw(type_url).to_str_lossy();
                config.validate(context, &type_url, &resources(start, count))
            })
        }
    }

    /// A delta update.
    ///
    /// # Safety
    /// Called by Envoy with the pointers that the ABI promises.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_config_validator_validate_delta(
        context_envoy: *mut c_void,
        config_module: *const c_void,
        type_url: EB,
        added: *const RawResource,
        added_count: usize,
        removed: *const EB,
        removed_count: usize,
    ) -> bool {
        // SAFETY: Envoy's promise; everything lives as long as the hook.
        unsafe {
            verdict("config_validator_validate_delta", context_envoy, config_module, |config, context| {
                let type_url = EnvoyBuffer::from_raw(type_url).to_str_lossy();
                let removed = texts(removed, removed_count);
                let removed: Vec<&str> = removed.iter().map(Cow::as_ref).collect();
                config.validate_delta(context, &type_url, &resources(added, added_count), &removed)
            })
        }
    }
}
