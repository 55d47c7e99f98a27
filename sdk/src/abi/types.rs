//! Structs and enums of the ABI, in `abi.h`'s layout and numbering.
//!
//! Enums that Envoy hands to a module arrive as numbers and are looked up: a value that a later Envoy
//! adds must not be undefined behaviour here.

#![allow(
    missing_docs,
    non_camel_case_types,
    reason = "names, fields and numbers are those of Envoy's abi.h and are explained there"
)]

use std::ffi::c_void;
use std::ptr;

/// An opaque pointer of either side.
pub type Ptr = *mut c_void;

/// Bytes that Envoy owns; valid until the hook ends or the next setter runs. May be null and empty.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct envoy_dynamic_module_type_envoy_buffer {
    pub ptr: *const u8,
    pub length: usize,
}

/// Bytes that the module owns; Envoy reads them during the call only.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct envoy_dynamic_module_type_module_buffer {
    pub ptr: *const u8,
    pub length: usize,
}

/// One header in Envoy's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct envoy_dynamic_module_type_envoy_http_header {
    pub key_ptr: *const u8,
    pub key_length: usize,
    pub value_ptr: *const u8,
    pub value_length: usize,
}

/// One header in the module's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct envoy_dynamic_module_type_module_http_header {
    pub key_ptr: *const u8,
    pub key_length: usize,
    pub value_ptr: *const u8,
    pub value_length: usize,
}

/// One resource of an xDS update, as the config validator sees it (Envoy 1.40).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct envoy_dynamic_module_type_config_validator_resource {
    pub name: envoy_dynamic_module_type_envoy_buffer,
    pub version: envoy_dynamic_module_type_envoy_buffer,
    pub aliases: *const envoy_dynamic_module_type_envoy_buffer,
    pub aliases_count: usize,
    pub has_ttl: bool,
    pub ttl_milliseconds: u64,
    pub has_resource: bool,
    pub serialized_resource: envoy_dynamic_module_type_envoy_buffer,
}

// The layout that was measured on the released binary: a wrong offset would read foreign memory.
const _: () = {
    type Resource = envoy_dynamic_module_type_config_validator_resource;
    assert!(size_of::<Resource>() == 88);
    assert!(std::mem::offset_of!(Resource, has_ttl) == 48);
    assert!(std::mem::offset_of!(Resource, has_resource) == 64);
    assert!(std::mem::offset_of!(Resource, serialized_resource) == 72);
    assert!(size_of::<envoy_dynamic_module_type_envoy_buffer>() == 16);
    assert!(size_of::<envoy_dynamic_module_type_envoy_http_header>() == 32);
};

/// Function that Envoy passes with `on_bootstrap_extension_shutdown`.
pub type envoy_dynamic_module_type_event_cb = Option<unsafe extern "C" fn(context: Ptr)>;

impl envoy_dynamic_module_type_envoy_buffer {
    /// The empty buffer, used as an out parameter's initial value.
    pub const EMPTY: Self = Self { ptr: ptr::null(), length: 0 };
}

impl envoy_dynamic_module_type_envoy_http_header {
    /// The empty header, used as an out parameter's initial value.
    pub const EMPTY: Self = Self { key_ptr: ptr::null(), key_length: 0, value_ptr: ptr::null(), value_length: 0 };
}

impl envoy_dynamic_module_type_module_buffer {
    /// No buffer, which is not the same as an empty one: Envoy after 1.40 removes a header only for this.
    pub const NULL: Self = Self { ptr: ptr::null(), length: 0 };
}

impl From<&[u8]> for envoy_dynamic_module_type_module_buffer {
    fn from(bytes: &[u8]) -> Self {
        Self { ptr: bytes.as_ptr(), length: bytes.len() }
    }
}

impl From<&str> for envoy_dynamic_module_type_module_buffer {
    fn from(text: &str) -> Self {
        Self::from(text.as_bytes())
    }
}

impl From<(&str, &[u8])> for envoy_dynamic_module_type_module_http_header {
    fn from((key, value): (&str, &[u8])) -> Self {
        Self { key_ptr: key.as_ptr(), key_length: key.len(), value_ptr: value.as_ptr(), value_length: value.len() }
    }
}

/// Enums of the ABI, for both directions.
macro_rules! enums {
    ($($(#[$meta:meta])* $name:ident { $($variant:ident = $value:literal),+ $(,)? })+) => {$(
        $(#[$meta])*
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($variant = $value),+ }

        impl $name {
            /// The number that the ABI has for it.
            #[allow(dead_code, reason = "some enums go one way only")]
            pub(crate) const fn as_raw(self) -> u32 {
                self as u32
            }

            /// The variant of a number; none for one that this crate does not know.
            #[allow(dead_code, reason = "as above")]
            pub(crate) const fn from_raw(raw: u32) -> Option<Self> {
                match raw {
                    $($value => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    )+};
}

enums! {
    envoy_dynamic_module_type_log_level { Trace = 0, Debug = 1, Info = 2, Warn = 3, Error = 4, Critical = 5, Off = 6 }
    envoy_dynamic_module_type_http_header_type { RequestHeader = 0, RequestTrailer = 1, ResponseHeader = 2, ResponseTrailer = 3 }
    envoy_dynamic_module_type_http_body_type { ReceivedRequestBody = 0, BufferedRequestBody = 1, ReceivedResponseBody = 2, BufferedResponseBody = 3 }
    envoy_dynamic_module_type_metadata_source { Dynamic = 0, Route = 1, Cluster = 2, Host = 3, HostLocality = 4 }
    envoy_dynamic_module_type_socket_option_state { Prebind = 0, Bound = 1, Listening = 2 }
    envoy_dynamic_module_type_on_http_filter_request_headers_status { Continue = 0, StopIteration = 1, ContinueAndDontEndStream = 2, StopAllIterationAndBuffer = 3, StopAllIterationAndWatermark = 4 }
    envoy_dynamic_module_type_on_http_filter_response_headers_status { Continue = 0, StopIteration = 1, ContinueAndDontEndStream = 2, StopAllIterationAndBuffer = 3, StopAllIterationAndWatermark = 4 }
    envoy_dynamic_module_type_on_http_filter_request_body_status { Continue = 0, StopIterationAndBuffer = 1, StopIterationAndWatermark = 2, StopIterationNoBuffer = 3 }
    envoy_dynamic_module_type_on_http_filter_response_body_status { Continue = 0, StopIterationAndBuffer = 1, StopIterationAndWatermark = 2, StopIterationNoBuffer = 3 }
    envoy_dynamic_module_type_on_http_filter_request_trailers_status { Continue = 0, StopIteration = 1 }
    envoy_dynamic_module_type_on_http_filter_response_trailers_status { Continue = 0, StopIteration = 1 }
    envoy_dynamic_module_type_on_http_filter_local_reply_status { Continue = 0, ContinueAndResetStream = 1 }
    envoy_dynamic_module_type_http_filter_stream_reset_reason { LocalReset = 0, LocalRefusedStreamReset = 1 }
    envoy_dynamic_module_type_on_network_filter_data_status { Continue = 0, StopIteration = 1 }
    envoy_dynamic_module_type_network_connection_close_type { FlushWrite = 0, NoFlush = 1, FlushWriteAndDelay = 2, Abort = 3, AbortReset = 4 }
    envoy_dynamic_module_type_network_connection_event { RemoteClose = 0, LocalClose = 1, Connected = 2, ConnectedZeroRtt = 3 }
    envoy_dynamic_module_type_network_connection_state { Open = 0, Closing = 1, Closed = 2 }
    envoy_dynamic_module_type_metrics_result { Success = 0, MetricNotFound = 1, InvalidLabels = 2, Frozen = 3 }
    envoy_dynamic_module_type_http_callout_init_result { Success = 0, MissingRequiredHeaders = 1, ClusterNotFound = 2, DuplicateCalloutId = 3, CannotCreateRequest = 4 }
    envoy_dynamic_module_type_http_callout_result { Success = 0, Reset = 1, ExceedResponseBufferLimit = 2 }
    /// Attributes that an HTTP or network filter may read. Which Envoy serves which one is measured
    /// in the project's notes; an unserved one is `None` (and an error line in Envoy 1.38's log).
    envoy_dynamic_module_type_attribute_id {
        RequestPath = 0, RequestUrlPath = 1, RequestHost = 2, RequestScheme = 3, RequestMethod = 4,
        RequestHeaders = 5, RequestReferer = 6, RequestUserAgent = 7, RequestTime = 8, RequestId = 9,
        RequestProtocol = 10, RequestQuery = 11, RequestDuration = 12, RequestSize = 13,
        RequestTotalSize = 14, ResponseCode = 15, ResponseCodeDetails = 16, ResponseFlags = 17,
        ResponseGrpcStatus = 18, ResponseHeaders = 19, ResponseTrailers = 20, ResponseSize = 21,
        ResponseTotalSize = 22, ResponseBackendLatency = 23, SourceAddress = 24, SourcePort = 25,
        DestinationAddress = 26, DestinationPort = 27, ConnectionId = 28, ConnectionMtls = 29,
        ConnectionTransportFailureReason = 39, ConnectionTerminationDetails = 40,
        UpstreamAddress = 41, UpstreamPort = 42, UpstreamLocalAddress = 51,
        UpstreamTransportFailureReason = 52, UpstreamRequestAttemptCount = 53,
        UpstreamCxPoolReadyDuration = 54, UpstreamLocality = 55, XdsNode = 56, XdsClusterName = 57,
        XdsListenerDirection = 59, XdsRouteName = 61, XdsVirtualHostName = 63,
        XdsFilterChainName = 66, HealthCheck = 67,
    }
}
