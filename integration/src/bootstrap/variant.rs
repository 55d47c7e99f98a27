//! What is compared: the same proxy with different cures.

use std::time::Duration;

use anyhow::Result;

use super::Bootstrap;

/// One way to run the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Istio's waypoint without any cure.
    Stock,
    /// Stock, with `retry_on: reset` on the route, for every method.
    RetryOnReset,
    /// Stock, with this idle timeout on outer connections.
    HboneIdleTimeout(Duration),
    /// Stock, with so many attempts for each tunnel's CONNECT.
    MaxConnectAttempts(u32),
    /// Watch and fence only: no retry filter, one CONNECT attempt.
    FenceOnly,
    /// As shipped.
    StaleGuard,
}

// === impl Variant ===

impl Variant {
    /// A short name for tables.
    pub fn name(self) -> String {
        match self {
            Self::Stock => "stock".to_owned(),
            Self::RetryOnReset => "stock + retry_on: reset".to_owned(),
            Self::HboneIdleTimeout(_) => "stock + hbone idle timeout".to_owned(),
            Self::MaxConnectAttempts(_) => "stock + max_connect_attempts".to_owned(),
            Self::FenceOnly => "fence only".to_owned(),
            Self::StaleGuard => "stale-guard".to_owned(),
        }
    }

    /// Whether it loads the module.
    pub fn has_module(self) -> bool {
        match self {
            Self::Stock | Self::RetryOnReset | Self::HboneIdleTimeout(_) | Self::MaxConnectAttempts(_) => false,
            Self::FenceOnly | Self::StaleGuard => true,
        }
    }
}

// === impl Bootstrap ===

impl Bootstrap {
    /// Turns the shipped configuration into a variant of it.
    ///
    /// # Errors
    /// If a part that the variant takes away is missing already.
    pub fn variant(self, variant: Variant) -> Result<Self> {
        match variant {
            Variant::Stock => self.without_module()?.with_max_connect_attempts(1),
            Variant::RetryOnReset => self.variant(Variant::Stock)?.with_retry_on("reset"),
            Variant::HboneIdleTimeout(timeout) => self.variant(Variant::Stock)?.with_hbone_idle_timeout(timeout),
            Variant::MaxConnectAttempts(attempts) => self.variant(Variant::Stock)?.with_max_connect_attempts(attempts),
            Variant::FenceOnly => self.without_retry_filter()?.with_max_connect_attempts(1),
            Variant::StaleGuard => Ok(self),
        }
    }
}
