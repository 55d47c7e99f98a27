//! Schedulers: a way back to the thread that owns an object, from any thread.
//!
//! A scheduler holds a weak reference: a commit after the object's end does nothing. Each is deleted
//! exactly once, when dropped. Threads that hold one must end before Envoy shuts down.
//!
//! Measured: the commit of a network filter's scheduler holds the filter for a moment, so that the
//! filter may be destroyed, and the user's object dropped, on the thread that commits.

use std::ffi::c_void;

use crate::abi::{callbacks, envoy};

macro_rules! schedulers {
    ($($(#[$meta:meta])* $trait:ident $imp:ident $new:ident $commit:ident $delete:ident;)+) => {$(
        $(#[$meta])*
        pub trait $trait: Send + Sync {
            /// Asks for one `on_scheduled` call with this id. Any thread.
            fn commit(&self, event_id: u64);
        }

        impl $trait for Box<dyn $trait> {
            fn commit(&self, event_id: u64) {
                (**self).commit(event_id);
            }
        }

        impl $trait for Detached {
            fn commit(&self, _event_id: u64) {}
        }

        pub(crate) struct $imp(*mut c_void);

        // SAFETY: Envoy's schedulers are made to be used and deleted on any thread.
        unsafe impl Send for $imp {}
        // SAFETY: as above; commits may run at the same time.
        unsafe impl Sync for $imp {}

        impl $imp {
            pub(crate) fn new(owner: *mut c_void) -> Self {
                let raw = match callbacks().$new {
                    // SAFETY: `owner` is the object of the hook in progress.
                    Some(new) if !owner.is_null() => unsafe { new(owner) },
                    _ => std::ptr::null_mut(),
                };
                Self(raw)
            }
        }

        impl $trait for $imp {
            fn commit(&self, event_id: u64) {
                if !self.0.is_null() {
                    envoy!($commit(self.0, event_id) or ());
                }
            }
        }

        impl Drop for $imp {
            fn drop(&mut self) {
                if !self.0.is_null() {
                    envoy!($delete(self.0) or ());
                }
            }
        }
    )+};
}

/// A scheduler of no object: what a handle without Envoy gives out.
pub(crate) struct Detached;

schedulers! {
    /// Runs [`HttpFilter::on_scheduled`](crate::HttpFilter::on_scheduled) on the stream's worker.
    EnvoyHttpFilterScheduler EnvoyHttpFilterSchedulerImpl
        http_filter_scheduler_new http_filter_scheduler_commit http_filter_scheduler_delete;
    /// Runs [`NetworkFilter::on_scheduled`](crate::NetworkFilter::on_scheduled) on the connection's worker.
    EnvoyNetworkFilterScheduler EnvoyNetworkFilterSchedulerImpl
        network_filter_scheduler_new network_filter_scheduler_commit network_filter_scheduler_delete;
    /// Runs [`BootstrapExtensionConfig::on_scheduled`](crate::BootstrapExtensionConfig::on_scheduled) on the main thread.
    EnvoyBootstrapExtensionConfigScheduler EnvoyBootstrapExtensionConfigSchedulerImpl
        bootstrap_extension_config_scheduler_new bootstrap_extension_config_scheduler_commit bootstrap_extension_config_scheduler_delete;
}
