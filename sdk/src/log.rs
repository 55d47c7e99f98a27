//! Envoy's log, under the logger `dynamic_modules`. Any thread may log.

use crate::abi::{envoy, envoy_dynamic_module_type_log_level as LogLevel};

/// Whether Envoy would write a message of this level now. Cheap.
pub fn is_log_enabled(level: LogLevel) -> bool {
    envoy!(log_enabled(level.as_raw()) or false)
}

/// Writes one message; on Envoy 1.40 and later with the place in the source that it comes from.
#[doc(hidden)]
pub fn log_message(level: LogLevel, message: &str, file: &str, line: u32) {
    if crate::abi::callbacks().log_v2.is_some() {
        envoy!(log_v2(level.as_raw(), message.into(), file.into(), line) or ());
    } else {
        envoy!(log(level.as_raw(), message.into()) or ());
    }
}

/// Logs at a level; the message is formatted only if that level is enabled.
#[macro_export]
macro_rules! envoy_log {
    ($level:expr, $($arg:tt)*) => {{
        let level = $level;
        if $crate::is_log_enabled(level) {
            $crate::__private::log_message(level, &::std::format!($($arg)*), ::core::file!(), ::core::line!());
        }
    }};
}

/// Logs at trace level.
#[macro_export]
macro_rules! envoy_log_trace {
    ($($arg:tt)*) => {
        $crate::envoy_log!($crate::abi::envoy_dynamic_module_type_log_level::Trace, $($arg)*)
    };
}
/// Logs at debug level.
#[macro_export]
macro_rules! envoy_log_debug {
    ($($arg:tt)*) => {
        $crate::envoy_log!($crate::abi::envoy_dynamic_module_type_log_level::Debug, $($arg)*)
    };
}
/// Logs at info level.
#[macro_export]
macro_rules! envoy_log_info {
    ($($arg:tt)*) => {
        $crate::envoy_log!($crate::abi::envoy_dynamic_module_type_log_level::Info, $($arg)*)
    };
}
/// Logs at warn level.
#[macro_export]
macro_rules! envoy_log_warn {
    ($($arg:tt)*) => {
        $crate::envoy_log!($crate::abi::envoy_dynamic_module_type_log_level::Warn, $($arg)*)
    };
}
/// Logs at error level.
#[macro_export]
macro_rules! envoy_log_error {
    ($($arg:tt)*) => {
        $crate::envoy_log!($crate::abi::envoy_dynamic_module_type_log_level::Error, $($arg)*)
    };
}
/// Logs at critical level.
#[macro_export]
macro_rules! envoy_log_critical {
    ($($arg:tt)*) => {
        $crate::envoy_log!($crate::abi::envoy_dynamic_module_type_log_level::Critical, $($arg)*)
    };
}
