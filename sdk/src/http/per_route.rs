//! Per-route configurations, by the token that stands for each on Envoy's side.
//!
//! Envoy gives a filter whatever configuration its route holds under the filter's name, also one that
//! another module made. So a token is looked up, never followed.

use std::any::Any;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

/// Per-route configuration. It is made on the main thread, read by every worker and dropped on any,
/// hence `Send + Sync` (the official crate asks for `dyn Any` only).
pub type HttpPerRouteConfig = dyn Any + Send + Sync;

static LIVE: LazyLock<RwLock<HashMap<usize, Arc<HttpPerRouteConfig>>>> = LazyLock::new(RwLock::default);

/// Keeps a configuration and gives its token: an address that is taken until [`remove`], so that no
/// other module's object can have it.
pub(super) fn insert(config: Box<HttpPerRouteConfig>) -> *const c_void {
    let token = Box::into_raw(Box::new(0_u8)).cast_const();
    LIVE.write().unwrap_or_else(PoisonError::into_inner).insert(token.addr(), Arc::from(config));
    token.cast()
}

/// The configuration of a token; none for what is not ours.
pub(super) fn get(token: *const c_void) -> Option<Arc<HttpPerRouteConfig>> {
    if token.is_null() {
        return None;
    }
    LIVE.read().unwrap_or_else(PoisonError::into_inner).get(&token.addr()).cloned()
}

/// Gives a configuration up, for the caller to drop outside of any lock.
pub(super) fn remove(token: *const c_void) -> Option<Arc<HttpPerRouteConfig>> {
    let config = LIVE.write().unwrap_or_else(PoisonError::into_inner).remove(&token.addr())?;
    // SAFETY: it was in the table, so `insert` made it, and it is given up only once.
    drop(unsafe { Box::from_raw(token.cast_mut().cast::<u8>()) });
    Some(config)
}
