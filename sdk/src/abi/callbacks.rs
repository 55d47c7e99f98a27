//! The table of Envoy's callbacks: every function of the running Envoy that this crate can call.
//!
//! The table is filled once, by `dlsym`, in `program_init`. No callback is referenced at link time.
//! So one `.so` loads on every Envoy from the floor on (rustc links with `BIND_NOW`: one unresolved
//! reference would make the load fail), and a test binary links without Envoy.

#[cfg(test)]
use std::cell::Cell;
use std::ffi::{CStr, c_void};

use once_cell::race::OnceBox;

use super::types::{
    Ptr, envoy_dynamic_module_type_envoy_buffer as EB, envoy_dynamic_module_type_envoy_http_header as EH,
    envoy_dynamic_module_type_module_buffer as MB, envoy_dynamic_module_type_module_http_header as MH,
};

/// Filled without a lock: two threads that race would find the same functions, and reading, which
/// every call into Envoy does, is one load.
static TABLE: OnceBox<Callbacks> = OnceBox::new();

/// The release that must have every callback marked 38.
const FLOOR: u32 = 38;

macro_rules! callbacks {
    ($([$since:literal] $name:ident($($arg:ty),* $(,)?) $(-> $ret:ty)?;)+) => {
        /// Envoy's callbacks by name, without the prefix `envoy_dynamic_module_callback_`; `None`
        /// where the running Envoy has no such function.
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct Callbacks {
            $(pub(crate) $name: Option<unsafe extern "C" fn($($arg),*) $(-> $ret)?>,)+
        }

        impl Callbacks {
            /// The table without any Envoy: each call gets its default answer.
            pub(crate) const EMPTY: Self = Self { $($name: None,)+ };

            /// Fills the table.
            ///
            /// # Errors
            /// Names the first callback of the floor release that `lookup` does not know.
            ///
            /// # Safety
            /// `lookup` returns null or the address of the C function of that name, whose signature
            /// is the one of `abi.h`.
            pub(crate) unsafe fn resolve(
                lookup: impl Fn(&CStr) -> *mut c_void,
            ) -> Result<Self, &'static str> {
                Ok(Self { $($name: {
                    const NAME: &str =
                        concat!("envoy_dynamic_module_callback_", stringify!($name), "\0");
                    let symbol = CStr::from_bytes_with_nul(NAME.as_bytes())
                        .map_or(std::ptr::null_mut(), &lookup);
                    if symbol.is_null() && $since <= FLOOR {
                        return Err(NAME.trim_end_matches('\0'));
                    }
                    // SAFETY: the caller vouches for the function's signature; `Option<fn>` has the
                    // size of a pointer, and null is `None`.
                    unsafe {
                        std::mem::transmute::<
                            *mut c_void,
                            Option<unsafe extern "C" fn($($arg),*) $(-> $ret)?>,
                        >(symbol)
                    }
                },)+ })
            }
        }
    };
}

callbacks! {
    // Common.
    [38] log(u32, MB);
    [40] log_v2(u32, MB, MB, u32);
    [38] log_enabled(u32) -> bool;

    // HTTP filter: headers and body.
    [38] http_get_header(Ptr, u32, MB, *mut EB, usize, *mut usize) -> bool;
    [38] http_get_headers_size(Ptr, u32) -> usize;
    [38] http_get_headers(Ptr, u32, *mut EH) -> bool;
    [38] http_set_header(Ptr, u32, MB, MB) -> bool;
    [38] http_get_body_size(Ptr, u32) -> usize;
    [38] http_get_buffer_limit(Ptr) -> u64;
    // HTTP filter: stream control.
    [38] http_send_response(Ptr, u32, *const MH, usize, MB, MB);
    [38] http_filter_continue_decoding(Ptr);
    [38] http_filter_continue_encoding(Ptr);
    [38] http_filter_reset_stream(Ptr, u32, MB);
    [38] get_most_specific_route_config(Ptr) -> *const c_void;
    [38] http_filter_get_worker_index(Ptr) -> u32;
    [38] http_add_custom_flag(Ptr, MB);
    // HTTP filter: attributes, upstream, metadata.
    [38] http_filter_get_attribute_string(Ptr, u32, *mut EB) -> bool;
    [38] http_filter_get_attribute_int(Ptr, u32, *mut u64) -> bool;
    [38] http_filter_get_attribute_bool(Ptr, u32, *mut bool) -> bool;
    [39] http_get_upstream_connection_id(Ptr) -> u64;
    [38] http_set_dynamic_metadata_string(Ptr, MB, MB, MB);
    [38] http_set_dynamic_metadata_number(Ptr, MB, MB, f64);
    [38] http_set_dynamic_metadata_bool(Ptr, MB, MB, bool);
    [38] http_get_metadata_string(Ptr, u32, MB, MB, *mut EB) -> bool;
    [38] http_get_metadata_number(Ptr, u32, MB, MB, *mut f64) -> bool;
    // HTTP filter: metrics, scheduler.
    [38] http_filter_config_define_counter(Ptr, MB, *const MB, usize, *mut usize) -> u32;
    [38] http_filter_increment_counter(Ptr, usize, *const MB, usize, u64) -> u32;
    [38] http_filter_scheduler_new(Ptr) -> Ptr;
    [38] http_filter_scheduler_commit(Ptr, u64);
    [38] http_filter_scheduler_delete(Ptr);

    // Network filter.
    [38] network_filter_close(Ptr, u32);
    [38] network_filter_close_with_details(Ptr, u32, MB);
    [38] network_filter_continue_reading(Ptr);
    [38] network_filter_get_connection_id(Ptr) -> u64;
    [38] network_filter_get_remote_address(Ptr, *mut EB, *mut u32) -> bool;
    [38] network_filter_get_local_address(Ptr, *mut EB, *mut u32) -> bool;
    [38] network_filter_has_upstream_host(Ptr) -> bool;
    [39] network_filter_get_upstream_connection_id(Ptr) -> u64;
    [38] network_filter_get_connection_state(Ptr) -> u32;
    [38] network_set_dynamic_metadata_string(Ptr, MB, MB, MB);
    [38] network_set_dynamic_metadata_number(Ptr, MB, MB, f64);
    [38] network_set_dynamic_metadata_bool(Ptr, MB, MB, bool);
    [38] network_get_dynamic_metadata_string(Ptr, MB, MB, *mut EB) -> bool;
    [38] network_set_socket_option_int(Ptr, i64, i64, u32, i64);
    [38] network_set_socket_option_bytes(Ptr, i64, i64, u32, MB);
    [39] network_filter_get_attribute_string(Ptr, u32, *mut EB) -> bool;
    [39] network_filter_get_attribute_int(Ptr, u32, *mut u64) -> bool;
    [38] network_filter_config_define_counter(Ptr, MB, *mut usize) -> u32;
    [38] network_filter_config_define_gauge(Ptr, MB, *mut usize) -> u32;
    [38] network_filter_config_define_histogram(Ptr, MB, *mut usize) -> u32;
    [38] network_filter_increment_counter(Ptr, usize, u64) -> u32;
    [38] network_filter_increment_gauge(Ptr, usize, u64) -> u32;
    [38] network_filter_decrement_gauge(Ptr, usize, u64) -> u32;
    [38] network_filter_record_histogram_value(Ptr, usize, u64) -> u32;
    [38] network_filter_scheduler_new(Ptr) -> Ptr;
    [38] network_filter_scheduler_commit(Ptr, u64);
    [38] network_filter_scheduler_delete(Ptr);
    [38] network_filter_get_worker_index(Ptr) -> u32;

    // Bootstrap extension.
    [38] bootstrap_extension_config_signal_init_complete(Ptr);
    [38] bootstrap_extension_config_scheduler_new(Ptr) -> Ptr;
    [38] bootstrap_extension_config_scheduler_commit(Ptr, u64);
    [38] bootstrap_extension_config_scheduler_delete(Ptr);
    [38] bootstrap_extension_timer_new(Ptr) -> Ptr;
    [38] bootstrap_extension_timer_enable(Ptr, u64);
    [38] bootstrap_extension_timer_disable(Ptr);
    [38] bootstrap_extension_timer_enabled(Ptr) -> bool;
    [38] bootstrap_extension_timer_delete(Ptr);
    [38] bootstrap_extension_register_admin_handler(Ptr, MB, MB, bool, bool) -> bool;
    [38] bootstrap_extension_admin_set_response(Ptr, MB);
    [38] bootstrap_extension_http_callout(Ptr, *mut u64, MB, *const MH, usize, MB, u64) -> u32;
    [38] bootstrap_extension_get_counter_value(Ptr, MB, *mut u64) -> bool;
    [38] bootstrap_extension_get_gauge_value(Ptr, MB, *mut u64) -> bool;
    [38] bootstrap_extension_config_define_counter(Ptr, MB, *const MB, usize, *mut usize) -> u32;
    [38] bootstrap_extension_config_define_gauge(Ptr, MB, *const MB, usize, *mut usize) -> u32;
    [38] bootstrap_extension_config_increment_counter(Ptr, usize, *const MB, usize, u64) -> u32;
    [38] bootstrap_extension_config_set_gauge(Ptr, usize, *const MB, usize, u64) -> u32;

    // Config validator.
    [40] config_validator_set_rejection_message(Ptr, MB);
}

/// Looks a symbol up in the process that loaded the module.
fn process_symbol(name: &CStr) -> *mut c_void {
    // SAFETY: `name` is NUL-terminated; RTLD_DEFAULT searches the executable and global libraries.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Fills the table from the running Envoy; later calls change nothing.
///
/// # Errors
/// Names the first callback of Envoy 1.38 that the process lacks.
pub(crate) fn install_from_process() -> Result<(), &'static str> {
    // SAFETY: symbols with this prefix are Envoy's, with the signatures of `abi.h`.
    TABLE.get_or_try_init(|| unsafe { Callbacks::resolve(process_symbol) }.map(Box::new)).map(|_| ())
}

/// The table in force; empty in a process without Envoy.
#[inline]
pub(crate) fn callbacks() -> &'static Callbacks {
    static NONE: Callbacks = Callbacks::EMPTY;
    #[cfg(test)]
    if let Some(fakes) = OF_THIS_THREAD.try_with(Cell::get).ok().flatten() {
        return fakes;
    }
    TABLE.get().unwrap_or(&NONE)
}

#[cfg(test)]
thread_local! {
    static OF_THIS_THREAD: Cell<Option<&'static Callbacks>> = const { Cell::new(None) };
}

/// Puts a table of fake callbacks in force for this thread, so that tests run side by side.
#[cfg(test)]
pub(crate) fn install_for_thread(table: Callbacks) {
    OF_THIS_THREAD.set(Some(Box::leak(Box::new(table))));
}

/// Calls one callback by name, or gives the default where this Envoy has none.
macro_rules! envoy {
    ($name:ident($($arg:expr),* $(,)?) or $default:expr) => {
        match $crate::abi::callbacks().$name {
            // SAFETY: the pointers passed are those that Envoy gave for the hook in progress, or
            // objects of Envoy's that the caller owns; buffers outlive the call.
            Some(function) => unsafe { function($($arg),*) },
            None => $default,
        }
    };
}

/// As `envoy!`, with the object's own Envoy pointer first; the default where that pointer is null.
macro_rules! ask {
    ($this:ident, $name:ident($($arg:expr),* $(,)?) or $default:expr) => {
        match ($this.raw(), $crate::abi::callbacks().$name) {
            // SAFETY: the pointer is the one that Envoy gave for the hook in progress and is set
            // to null when Envoy destroys its object; buffers outlive the call.
            (raw, Some(function)) if !raw.is_null() => unsafe { function(raw, $($arg),*) },
            _ => $default,
        }
    };
}

pub(crate) use {ask, envoy};
