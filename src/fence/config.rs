//! Configuration of the network filter `fence`.

use std::time::Duration;

use serde::Deserialize;

use crate::{
    config::{self, ConfigError, Mode, Object, Ratio, Span, Whole},
    endpoints::{CloseAfter, Rotation},
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
    /// Whether the connections of past generations are closed once they carry nothing more.
    pub close_fenced: bool,
    /// How long after the removal of its endpoint a tunnel that is still open is closed.
    pub close_after_removal: Option<Span<0, 86_400_000>>,
    /// The share of `close_after_removal` over which the tunnels are spread; added to it.
    pub close_after_removal_jitter: Ratio,
}

/// Socket options of the outer connection.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TcpConfig {
    /// `TCP_USER_TIMEOUT`: how long sent bytes may stay unacknowledged (RFC 5482), or unsent because the peer's
    /// window is zero. While it is set, Linux also ends an idle connection by it, not by the number of probes.
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
            close_fenced: true,
            close_after_removal: None,
            close_after_removal_jitter: Ratio::clamped(0.1),
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
    /// is configured, whose timer deadlines need; `takes_commits` whether a filter of this Envoy may be woken from
    /// another thread while its connection ends.
    ///
    /// # Errors
    /// `close_after_removal` without either.
    pub fn checked(self, has_pulse: bool, takes_commits: bool) -> Result<Self, ConfigError> {
        let lacks = match self.close_after_removal {
            Some(_) if !takes_commits => {
                "needs Envoy 1.39 or later: before, closing a connection from another thread can race with its end"
            }
            Some(_) if !has_pulse => "needs the bootstrap extension \"status\", which is not configured in this proxy",
            Some(_) | None => return Ok(self),
        };
        let value = self.close_after_removal.map(|after| format!("{:?}", after.get())).unwrap_or_default();
        Err(ConfigError::new(NAME, "close_after_removal", &value.into(), lacks))
    }

    /// When a tunnel of a removed endpoint is closed, if ever.
    #[must_use]
    pub fn close_after(&self) -> Option<CloseAfter> {
        self.close_after_removal
            .map(|after| CloseAfter { after: after.get(), jitter: self.close_after_removal_jitter.get() })
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
        Self { user_timeout: Some(Span::clamped_ms(30_000)), keepalive: Some(Object::default()) }
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
}

// === impl KeepaliveConfig ===

impl Default for KeepaliveConfig {
    fn default() -> Self {
        Self { idle: Span::clamped_ms(15_000), interval: Span::clamped_ms(5_000), probes: Whole::clamped(3) }
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Rounded up: a shorter time than asked for would be a surprise.
fn seconds(duration: Duration) -> i64 {
    (millis(duration) + 999) / 1_000
}
