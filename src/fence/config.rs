//! Configuration of the network filter `fence`.

use std::time::Duration;

use serde::Deserialize;

use crate::{
    config::{self, ConfigError, Mode, Object, Ratio, Span, Whole},
    endpoints::{Liveness, ResetEvidence, Rotation},
};

/// The name that Envoy's configuration selects this part with.
pub const NAME: &str = "fence";

/// Configuration of the `fence`. Every field has a default.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FenceConfig {
    /// Whether generations and options are set, or tunnels are only tracked.
    pub mode: Mode,
    /// Liveness of the outer connection.
    pub tcp: Object<TcpConfig>,
    /// The age after which new tunnels move to a fresh connection.
    pub max_connection_age: Option<Span<1_000, 604_800_000>>,
    /// The share of `max_connection_age` over which endpoints are spread.
    pub max_connection_age_jitter: Ratio,
    /// How long after the removal of its endpoint a tunnel that is still open is closed.
    pub close_after_removal: Option<Span<0, 86_400_000>>,
    /// A connection that breaks after a longer silence is counted as `aged`.
    pub aged_after: Span<100, 86_400_000>,
}

/// Socket options of the outer connection.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TcpConfig {
    /// `TCP_USER_TIMEOUT`: how long sent bytes may stay unacknowledged (RFC 5482).
    pub user_timeout: Option<Span<1_000, 3_600_000>>,
    /// Probes of an idle connection.
    pub keepalive: Option<Object<KeepaliveConfig>>,
}

/// TCP keepalive (RFC 9293, section 3.8.4).
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeepaliveConfig {
    /// `TCP_KEEPIDLE`: silence before the first probe, in whole seconds.
    pub idle: Span<1_000, 32_767_000>,
    /// `TCP_KEEPINTVL`: time between probes, in whole seconds.
    pub interval: Span<1_000, 32_767_000>,
    /// `TCP_KEEPCNT`: unanswered probes before the kernel gives the connection up.
    pub probes: Whole<1, 127>,
}

/// One option for `setsockopt`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketOption {
    /// Protocol level.
    pub level: i64,
    /// Name within the level.
    pub name: i64,
    /// The value.
    pub value: i64,
}

// Linux numbers, from `include/uapi`; Envoy's dynamic modules run on Linux.
const SOL_SOCKET: i64 = 1;
const SO_KEEPALIVE: i64 = 9;
const IPPROTO_TCP: i64 = 6;
const TCP_KEEPIDLE: i64 = 4;
const TCP_KEEPINTVL: i64 = 5;
const TCP_KEEPCNT: i64 = 6;
const TCP_USER_TIMEOUT: i64 = 18;

// === impl FenceConfig ===

impl Default for FenceConfig {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            tcp: Object(TcpConfig::default()),
            max_connection_age: None,
            max_connection_age_jitter: Ratio::clamped(0.1),
            close_after_removal: None,
            aged_after: Span::clamped_ms(millis(ResetEvidence::AGED_AFTER).unsigned_abs()),
        }
    }
}

impl FenceConfig {
    /// Parses the configuration that Envoy hands over.
    ///
    /// # Errors
    /// See [`config::parse`].
    pub fn parse(json: &[u8]) -> Result<Self, ConfigError> {
        config::parse(NAME, json)
    }

    /// Checks what depends on the rest of the proxy: `has_pulse` says whether the `status` extension
    /// is configured, whose timer deadlines need.
    ///
    /// # Errors
    /// `close_after_removal` without that extension.
    pub fn checked(self, has_pulse: bool) -> Result<Self, ConfigError> {
        match self.close_after_removal {
            Some(after) if !has_pulse => Err(ConfigError::new(
                NAME,
                "close_after_removal",
                &format!("{:?}", after.get()).into(),
                "needs the bootstrap extension \"status\", which is not configured in this proxy",
            )),
            Some(_) | None => Ok(self),
        }
    }

    /// When new tunnels leave an old connection, if ever.
    #[must_use]
    pub fn rotation(&self) -> Option<Rotation> {
        self.max_connection_age
            .map(|max_age| Rotation { max_age: max_age.get(), jitter: self.max_connection_age_jitter.get() })
    }
}

// === impl TcpConfig ===

impl Default for TcpConfig {
    fn default() -> Self {
        Self { user_timeout: Some(Span::clamped_ms(20_000)), keepalive: Some(Object::default()) }
    }
}

impl TcpConfig {
    /// The options, in the order in which they are set.
    #[must_use]
    pub fn socket_options(&self) -> Vec<SocketOption> {
        let tcp = |name, value| SocketOption { level: IPPROTO_TCP, name, value };
        let mut options = Vec::new();
        if let Some(user_timeout) = self.user_timeout {
            options.push(tcp(TCP_USER_TIMEOUT, millis(user_timeout.get())));
        }
        if let Some(keepalive) = &self.keepalive {
            options.push(SocketOption { level: SOL_SOCKET, name: SO_KEEPALIVE, value: 1 });
            options.push(tcp(TCP_KEEPIDLE, seconds(keepalive.idle.get())));
            options.push(tcp(TCP_KEEPINTVL, seconds(keepalive.interval.get())));
            options.push(tcp(TCP_KEEPCNT, i64::from(keepalive.probes.get())));
        }
        options
    }

    /// When the kernel gives up, as Linux computes it (`tcp_keepalive_timer`): with a user timeout, at
    /// the first probe's turn after it that an earlier probe precedes; else after the last probe.
    #[must_use]
    pub fn liveness(&self) -> Liveness {
        let unacknowledged = self.user_timeout.map(|timeout| timeout.get());
        let idle = self.keepalive.as_ref().map(|keepalive| {
            let (idle, interval) = (whole(keepalive.idle.get()), whole(keepalive.interval.get()));
            let probes = match unacknowledged {
                Some(timeout) => timeout.saturating_sub(idle).as_millis().div_ceil(interval.as_millis().max(1)).max(1),
                None => u128::from(keepalive.probes.get()),
            };
            idle + interval * u32::try_from(probes).unwrap_or(u32::MAX)
        });
        Liveness { unacknowledged, idle }
    }
}

// === impl KeepaliveConfig ===

impl Default for KeepaliveConfig {
    fn default() -> Self {
        Self { idle: Span::clamped_ms(15_000), interval: Span::clamped_ms(5_000), probes: Whole::clamped(3) }
    }
}

fn whole(duration: Duration) -> Duration {
    Duration::from_secs(seconds(duration).unsigned_abs())
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Rounded up: a shorter time than asked for would be a surprise.
fn seconds(duration: Duration) -> i64 {
    (millis(duration) + 999) / 1_000
}
