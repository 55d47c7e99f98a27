//! A configuration object's way over the ABI: a box in a box, since a trait object's pointer is a wide one.

use std::ffi::c_void;
use std::ptr;

use crate::abi::envoy_dynamic_module_type_envoy_buffer as EB;
use crate::buffer::EnvoyBuffer;
use crate::guard::{drop_guarded, guard};

/// Makes a configuration object by the user's constructor; null, which rejects Envoy's configuration, if
/// that refuses or panics.
///
/// # Safety
/// The buffers are null or live as long as this call.
pub(crate) unsafe fn create<C>(
    hook: &'static str,
    name: EB,
    config: EB,
    make: impl FnOnce(&str, &[u8]) -> Option<C>,
) -> *const c_void {
    // SAFETY: the caller's promise.
    let (name, config) = unsafe { (EnvoyBuffer::from_raw(name), EnvoyBuffer::from_raw(config)) };
    guard(hook, || make(&name.to_str_lossy(), config.as_slice()))
        .flatten()
        .map_or(ptr::null(), |config| Box::into_raw(Box::new(config)).cast_const().cast())
}

/// The object behind a pointer of [`create`].
///
/// # Safety
/// `config` is null, or came from `create` of the same `C` and is not destroyed during `'a`.
pub(crate) unsafe fn get<'a, C>(config: *const c_void) -> Option<&'a C> {
    // SAFETY: the caller's promise.
    unsafe { config.cast::<C>().as_ref() }
}

/// Frees an object.
///
/// # Safety
/// As for [`get`], and Envoy uses the pointer no more.
pub(crate) unsafe fn destroy<C>(hook: &'static str, config: *const c_void) {
    if !config.is_null() {
        // SAFETY: the caller's promise; made by `Box::into_raw` in `create`.
        let config = unsafe { Box::from_raw(config.cast_mut().cast::<C>()) };
        drop_guarded(hook, config);
    }
}
