//! Views of Envoy's memory.

use std::borrow::Cow;
use std::marker::PhantomData;

use crate::abi::{
    envoy_dynamic_module_type_envoy_buffer as RawBuffer, envoy_dynamic_module_type_envoy_http_header as RawHeader,
    envoy_dynamic_module_type_module_http_header as ModuleHeader,
};

/// Bytes in Envoy's memory, valid until the hook ends or the next setter runs on the same object;
/// the borrow on the object says as much. May be empty; need not be UTF-8.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct EnvoyBuffer<'a> {
    raw: RawBuffer,
    owner: PhantomData<&'a [u8]>,
}

/// A slice from Envoy's pointer and length: a null pointer or an impossible length is empty.
///
/// # Safety
/// A non-null `ptr` with a non-zero `len` points to `len` initialised `T`s that live for `'a`.
pub(crate) unsafe fn slice_or_empty<'a, T>(ptr: *const T, len: usize) -> &'a [T] {
    let bytes = len.checked_mul(size_of::<T>());
    if ptr.is_null() || len == 0 || bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
        return &[];
    }
    // SAFETY: not null, not empty, of a possible size; the caller vouches for the rest.
    unsafe { std::slice::from_raw_parts(ptr, len) }
}

// === impl EnvoyBuffer ===

impl<'a> EnvoyBuffer<'a> {
    /// A view of the module's own bytes, for tests.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { raw: RawBuffer { ptr: bytes.as_ptr(), length: bytes.len() }, owner: PhantomData }
    }

    /// # Safety
    /// `raw` is null, or points to `length` bytes that live for `'a`.
    pub(crate) const unsafe fn from_raw(raw: RawBuffer) -> Self {
        Self { raw, owner: PhantomData }
    }

    /// The bytes. They are borrowed from this view, as in the official crate.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes()
    }

    /// The bytes, for as long as Envoy keeps them.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        // SAFETY: the constructors take only buffers that live for `'a`.
        unsafe { slice_or_empty(self.raw.ptr, self.raw.length) }
    }

    /// The bytes as text; what is not UTF-8 becomes U+FFFD.
    pub(crate) fn to_str_lossy(self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.bytes())
    }
}

impl Default for EnvoyBuffer<'_> {
    fn default() -> Self {
        Self::new(b"")
    }
}

impl std::fmt::Debug for EnvoyBuffer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.to_str_lossy())
    }
}

// === free functions ===

/// # Safety
/// As for [`EnvoyBuffer::from_raw`], and all of it lives for `'a`.
pub(crate) unsafe fn buffers<'a>(ptr: *const RawBuffer, len: usize) -> Vec<EnvoyBuffer<'a>> {
    // SAFETY: the caller's promise covers the array and what its elements point to.
    unsafe { slice_or_empty(ptr, len).iter().map(|raw| EnvoyBuffer::from_raw(*raw)).collect() }
}

/// # Safety
/// As for [`buffers`], for headers.
pub(crate) unsafe fn headers<'a>(ptr: *const RawHeader, len: usize) -> Vec<(EnvoyBuffer<'a>, EnvoyBuffer<'a>)> {
    let pair = |raw: &RawHeader| {
        let key = RawBuffer { ptr: raw.key_ptr, length: raw.key_length };
        let value = RawBuffer { ptr: raw.value_ptr, length: raw.value_length };
        // SAFETY: the caller's promise.
        unsafe { (EnvoyBuffer::from_raw(key), EnvoyBuffer::from_raw(value)) }
    };
    // SAFETY: the caller's promise.
    unsafe { slice_or_empty(ptr, len).iter().map(pair).collect() }
}

/// Headers as the ABI takes them; the result borrows from `headers`.
pub(crate) fn module_headers(headers: &[(&str, &[u8])]) -> Vec<ModuleHeader> {
    headers.iter().map(|header| ModuleHeader::from(*header)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_null_buffer_is_empty_whatever_its_length() {
        for length in [0, 1, usize::MAX] {
            // SAFETY: a null pointer is never read.
            let buffer = unsafe { EnvoyBuffer::from_raw(RawBuffer { ptr: std::ptr::null(), length }) };
            assert!(buffer.as_slice().is_empty(), "a null pointer of length {length} was followed");
        }
    }

    #[test]
    fn an_impossible_length_is_empty() {
        let byte = 1_u8;
        // SAFETY: a length beyond isize::MAX is never followed.
        let slice = unsafe { slice_or_empty(&raw const byte, usize::MAX) };
        assert!(slice.is_empty(), "a slice beyond isize::MAX is undefined behaviour");
    }

    #[test]
    fn bytes_that_are_not_utf8_become_replacement_characters() {
        let buffer = EnvoyBuffer::new(b"a\xffb");
        assert_eq!(buffer.to_str_lossy(), "a\u{fffd}b");
        assert_eq!(buffer.as_slice(), b"a\xffb");
    }
}
