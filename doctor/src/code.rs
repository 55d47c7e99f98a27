//! Everything that the doctor can find, as a closed list.

use std::fmt;

use serde::Serialize;

/// How bad a finding is; the worst is the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Requests fail, or are executed twice, or the module does not work.
    Error,
    /// It works, and worse than it could.
    Warning,
    /// Worth to know.
    Info,
}

/// What can be found. Codes keep their meaning: one that is no longer needed is not used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "`meaning` says what each is, and the documentation's table is made of it")]
pub enum Code {
    InputDamaged,
    SectionMissing,
    TunnelsUnfenced,
    IdleTimeoutLong,
    NoLiveness,
    BlindResetRetry,
    GrpcStatusRetry,
    StatusCodeRetry,
    HedgedReplay,
    ResetsUnhandled,
    ConnectionsToGone,
    PastTheFence,
    SlowConnect,
    NoDynamicModules,
    Rejected,
    FilterOrder,
    GenerationMissing,
    GenerationWrong,
    GenerationNotShared,
    GenerationWhenEmpty,
    MayBeUnloaded,
    SeveralModules,
    SeveralFences,
    SeveralConfigurations,
    NotEnforcing,
    FenceMisplaced,
    RetryNotLast,
    RetryMisplaced,
    RetryMissing,
    SeveralRetries,
    SeveralStatus,
    NothingWatches,
    PollClusterMissing,
    PollClusterElsewhere,
    ValidatorIncomplete,
    SourceUnwatched,
    ValidatorPossible,
    PollAnswerLimit,
    PollAnswerTooLarge,
    ControlPlaneHidden,
    SuspectOff,
    ControlPlaneSlow,
    StatusMissing,
    StatsHidden,
    AttemptsHidden,
}

/// What is fixed of a code.
struct Entry {
    id: &'static str,
    name: &'static str,
    severity: Severity,
    meaning: &'static str,
    cure: &'static str,
}

// === impl Severity ===

impl Severity {
    /// For the beginning of a line.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Error => "Error",
            Self::Warning => "Warning",
            Self::Info => "Info",
        }
    }
}

// === impl Code ===

impl Code {
    /// All of them, in order.
    pub const ALL: &[Code] = &[
        Self::InputDamaged,
        Self::SectionMissing,
        Self::TunnelsUnfenced,
        Self::IdleTimeoutLong,
        Self::NoLiveness,
        Self::BlindResetRetry,
        Self::GrpcStatusRetry,
        Self::StatusCodeRetry,
        Self::HedgedReplay,
        Self::ResetsUnhandled,
        Self::ConnectionsToGone,
        Self::PastTheFence,
        Self::SlowConnect,
        Self::NoDynamicModules,
        Self::Rejected,
        Self::FilterOrder,
        Self::GenerationMissing,
        Self::GenerationWrong,
        Self::GenerationNotShared,
        Self::GenerationWhenEmpty,
        Self::MayBeUnloaded,
        Self::SeveralModules,
        Self::SeveralFences,
        Self::SeveralConfigurations,
        Self::NotEnforcing,
        Self::FenceMisplaced,
        Self::RetryNotLast,
        Self::RetryMisplaced,
        Self::RetryMissing,
        Self::SeveralRetries,
        Self::SeveralStatus,
        Self::NothingWatches,
        Self::PollClusterMissing,
        Self::PollClusterElsewhere,
        Self::ValidatorIncomplete,
        Self::SourceUnwatched,
        Self::ValidatorPossible,
        Self::PollAnswerLimit,
        Self::PollAnswerTooLarge,
        Self::ControlPlaneHidden,
        Self::SuspectOff,
        Self::ControlPlaneSlow,
        Self::StatusMissing,
        Self::StatsHidden,
        Self::AttemptsHidden,
    ];

    /// `SG0101`.
    #[must_use]
    pub fn id(self) -> &'static str {
        self.entry().id
    }

    /// `tunnels-unfenced`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.entry().name
    }

    /// How bad it is.
    #[must_use]
    pub fn severity(self) -> Severity {
        self.entry().severity
    }

    /// What it means, in Markdown.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        self.entry().meaning
    }

    /// What to do, in Markdown.
    #[must_use]
    pub fn cure(self) -> &'static str {
        self.entry().cure
    }

    fn entry(self) -> Entry {
        use Severity::{Error, Info, Warning};
        let entry = |id, name, severity, meaning, cure| Entry { id, name, severity, meaning, cure };
        match self {
            Self::InputDamaged => entry(
                "SG0001",
                "input-damaged",
                Warning,
                "A part of the input could not be read. Nothing is concluded from what is absent there.",
                "Take the dump again, whole: `curl -s localhost:15000/config_dump`.",
            ),
            Self::SectionMissing => entry(
                "SG0002",
                "section-missing",
                Info,
                "The dump lacks a section, so checks that need it were left out.",
                "Give the whole `/config_dump`, without `resource` or `mask`.",
            ),
            Self::TunnelsUnfenced => entry(
                "SG0101",
                "tunnels-unfenced",
                Error,
                "No fence stands before `tcp_proxy` where HBONE tunnels begin. EDS removal does not close their outer connections, so a tunnel to a new pod may use the connection of the pod that had its address before, and its request is answered 503 UC.",
                "Mount `libstale_guard.so` first and add the `status` extension to the bootstrap; then put the fence and `set_filter_state` before `tcp_proxy`.",
            ),
            Self::IdleTimeoutLong => entry(
                "SG0102",
                "idle-timeout-long",
                Warning,
                "The outer connections' idle timeout is longer than 5 minutes, off, or not set (1 h). Connections to pods that are gone, and connections that were fenced, stay for that time.",
                "Set it to 5 minutes or less. A short one alone is no cure: a connection with one hung stream is never idle.",
            ),
            Self::NoLiveness => entry(
                "SG0103",
                "no-liveness",
                Warning,
                "Nothing ends an outer connection whose peer no longer acknowledges: neither the fence's `tcp.user_timeout` nor HTTP/2 PINGs. TCP keepalive alone does not: it rests while data is unacknowledged. Requests to such a pod wait for their timeout, or for ever without one.",
                "Let the fence set `tcp.user_timeout`.",
            ),
            Self::BlindResetRetry => entry(
                "SG0104",
                "blind-reset-retry",
                Error,
                "A route retries resets whatever the method: POST and gRPC calls that a pod has executed are executed again.",
                "Leave `reset`, `5xx` and `gateway-error` to the module's `retry` filter, which allows them by method and rule.",
            ),
            Self::GrpcStatusRetry => entry(
                "SG0105",
                "grpc-status-retry",
                Warning,
                "A route retries gRPC calls by the status of the answer. Any service may answer so after it has executed the call; that is Istio's default since 1.30.3.",
                "Name what to retry; the words below prove that nothing was executed.",
            ),
            Self::StatusCodeRetry => entry(
                "SG0106",
                "status-code-retry",
                Warning,
                "A route retries requests by the status of the answer, whatever the method: whoever answered may have executed them.",
                "Take the status codes out, or limit the policy by `retriable_request_headers` on `:method`.",
            ),
            Self::HedgedReplay => entry(
                "SG0107",
                "hedged-replay",
                Error,
                "A route hedges: at the end of a per-try timeout Envoy sends the request again while the first attempt runs, POST too, if the request has any retry condition. The module's `retry` filter gives one to every request unless `unprocessed` is false.",
                "Set `unprocessed: false` for the route, or take the hedge policy away.",
            ),
            Self::ResetsUnhandled => entry(
                "SG0108",
                "resets-unhandled",
                Info,
                "Nothing retries a reset here, GET neither. Behind a tunnel connecting always succeeds, so `connect-failure` and `reset-before-request` do not help.",
                "Put the module's `retry` filter before the router.",
            ),
            Self::ConnectionsToGone => entry(
                "SG0109",
                "connections-to-gone-endpoints",
                Warning,
                "There are connections at this moment to addresses that no cluster lists, and no fence keeps new tunnels off them.",
                "Install the fence. Until then, `idle_timeout` bounds how long they stay.",
            ),
            Self::PastTheFence => entry(
                "SG0110",
                "endpoints-past-the-fence",
                Info,
                "Some endpoints are not reached through a tunnel that a fence could guard: pods outside the mesh, or another network's gateway.",
                "Nothing, if that is meant. A pod of the mesh needs `ambient.istio.io/redirection: enabled`.",
            ),
            Self::SlowConnect => entry(
                "SG0111",
                "slow-connect",
                Info,
                "A tunnel to a host that answers nothing takes `max_connect_attempts` times the cluster's `connect_timeout` to fail, here more than 10 s.",
                "Lower `connect_timeout`, or leave `max_connect_attempts` at 1.",
            ),
            Self::NoDynamicModules => entry(
                "SG0201",
                "no-dynamic-modules",
                Info,
                "This build of Envoy has no dynamic modules, so Stale Guard cannot be installed in it.",
                "Istio's proxy has them from 1.31 on, Envoy's release from 1.38 on.",
            ),
            Self::Rejected => entry(
                "SG0202",
                "configuration-rejected",
                Error,
                "Envoy refused a configuration that the module is part of.",
                "Read the reason. If the file is missing: mount `libstale_guard.so` where `ENVOY_DYNAMIC_MODULES_SEARCH_PATH` points, before the configuration names it.",
            ),
            Self::FilterOrder => entry(
                "SG0203",
                "filter-order",
                Error,
                "The fence, `set_filter_state` and `tcp_proxy` do not stand in this order, so the generation is never part of the pool key.",
                "Put them in this order, with nothing else between that ends the connection.",
            ),
            Self::GenerationMissing => entry(
                "SG0204",
                "generation-missing",
                Error,
                "No `set_filter_state` takes the fence's generation: the fence only looks.",
                "Put it between the fence and `tcp_proxy`.",
            ),
            Self::GenerationWrong => entry(
                "SG0205",
                "generation-wrong",
                Error,
                "`set_filter_state` sets the generation in a way that does not reach the pool key.",
                "Use `on_new_connection`, `factory_key: envoy.hashable_string` and `%DYNAMIC_METADATA(stale_guard:generation)%`.",
            ),
            Self::GenerationNotShared => entry(
                "SG0206",
                "generation-not-shared",
                Error,
                "The generation is not shared with the upstream connection, so it is not part of the pool key.",
                "Set `shared_with_upstream: ONCE`.",
            ),
            Self::GenerationWhenEmpty => entry(
                "SG0207",
                "generation-when-empty",
                Warning,
                "Where the fence has no generation, an object is set all the same: pooling then differs from stock Envoy.",
                "Set `omit_empty_values: true` and `skip_if_empty: true`.",
            ),
            Self::MayBeUnloaded => entry(
                "SG0208",
                "may-be-unloaded",
                Error,
                "Envoy may unload the module when a configuration goes away, while other parts of it are still in use.",
                "Set `do_not_close: true` everywhere.",
            ),
            Self::SeveralModules => entry(
                "SG0209",
                "several-modules",
                Error,
                "The parts come from several files. Each file has a memory of its own: what one learns of endpoints, the other does not know.",
                "Name the same module everywhere.",
            ),
            Self::SeveralFences => entry(
                "SG0210",
                "several-fences",
                Error,
                "More than one fence stands in a filter chain.",
                "Keep one; an EnvoyFilter may have been applied twice.",
            ),
            Self::SeveralConfigurations => entry(
                "SG0211",
                "several-configurations",
                Warning,
                "Fences with different configurations are in force. While a listener drains that is so for a time; its tunnels are cut when the drain ends.",
                "If no listener drains, give every chain the same configuration.",
            ),
            Self::NotEnforcing => entry(
                "SG0212",
                "not-enforcing",
                Warning,
                "A part of the module only looks, or does nothing.",
                "Set `mode: enforce`, the default, once its counters look right.",
            ),
            Self::FenceMisplaced => entry(
                "SG0213",
                "fence-misplaced",
                Warning,
                "A fence stands where no HBONE tunnel begins: it costs and guards nothing.",
                "Name the listener in the EnvoyFilter: `connect_originate`.",
            ),
            Self::RetryNotLast => entry(
                "SG0214",
                "retry-not-last",
                Warning,
                "Other filters stand between `retry` and the router. What they change or answer, `retry` has not seen.",
                "Put `retry` right before the router.",
            ),
            Self::RetryMisplaced => entry(
                "SG0215",
                "retry-misplaced",
                Warning,
                "`retry` stands in a connection manager that ends tunnels: it sees nothing but CONNECT.",
                "Name the listener in the EnvoyFilter: `main_internal`.",
            ),
            Self::RetryMissing => entry(
                "SG0216",
                "retry-missing",
                Warning,
                "Some HTTP chains have the `retry` filter and others have not.",
                "Put it into every chain, or accept that these services have no safe retries.",
            ),
            Self::SeveralRetries => entry(
                "SG0217",
                "several-retries",
                Warning,
                "More than one `retry` filter stands in a chain: both decide, both count, and each has a budget.",
                "Keep one.",
            ),
            Self::SeveralStatus => entry(
                "SG0218",
                "several-status",
                Warning,
                "There is more than one `status` extension: each polls, and counters double.",
                "Keep one.",
            ),
            Self::NothingWatches => entry(
                "SG0301",
                "nothing-watches",
                Error,
                "Neither a config validator nor polls tell the fence of removals: it never fences.",
                "Configure the `status` extension with `watch.source: admin`, and where the build has it the validator.",
            ),
            Self::PollClusterMissing => entry(
                "SG0302",
                "poll-cluster-missing",
                Error,
                "The cluster that polls go through does not exist.",
                "Name a static cluster that leads to this proxy's own admin endpoint.",
            ),
            Self::PollClusterElsewhere => entry(
                "SG0303",
                "poll-cluster-elsewhere",
                Error,
                "The cluster that polls go through does not lead to this proxy's admin endpoint.",
                "Let its one endpoint be the address of `admin`.",
            ),
            Self::ValidatorIncomplete => entry(
                "SG0304",
                "validator-incomplete",
                Warning,
                "The validator sees endpoints or clusters, not both.",
                "One entry for each of the two resource types.",
            ),
            Self::SourceUnwatched => entry(
                "SG0305",
                "source-unwatched",
                Warning,
                "A cluster has its endpoints from a source of its own, which no validator of the module sees, and polls are off.",
                "Add the validator to that source, or set `watch.source: admin`.",
            ),
            Self::ValidatorPossible => entry(
                "SG0306",
                "validator-possible",
                Info,
                "This build has module config validators, and the module only polls: it learns of a removal up to `max_interval` late.",
                "Add the validator to `ads_config`.",
            ),
            Self::PollAnswerLimit => entry(
                "SG0307",
                "poll-answer-limit",
                Info,
                "The answer to a poll is limited to Envoy's default of 32 MiB, about 15,000 endpoints.",
                "Raise the runtime key `http.async_response_buffer_limit`.",
            ),
            Self::PollAnswerTooLarge => entry(
                "SG0308",
                "poll-answer-too-large",
                Error,
                "The answer to a poll is larger than Envoy's limit, so no poll succeeds.",
                "Raise the runtime key `http.async_response_buffer_limit`.",
            ),
            Self::ControlPlaneHidden => entry(
                "SG0309",
                "control-plane-hidden",
                Warning,
                "The stats matcher hides `control_plane.connected_state`, so `suspect_after` does not work: after an absence of the control plane nothing is fenced.",
                "Let that statistic through.",
            ),
            Self::SuspectOff => entry(
                "SG0310",
                "suspect-off",
                Info,
                "`suspect_after` is null: what changed while the control plane was away is not fenced.",
                "Leave it at its default, 30 s, unless that is meant.",
            ),
            Self::ControlPlaneSlow => entry(
                "SG0311",
                "control-plane-slow",
                Warning,
                "Connecting to the control plane may take 10 s or longer, and Envoy counts it as connected meanwhile: an absence ends too early for `suspect_after`.",
                "Set the cluster's `connect_timeout` below 10 s.",
            ),
            Self::StatusMissing => entry(
                "SG0312",
                "status-missing",
                Warning,
                "There is no `status` extension: no admin page, no polls where the validator does not see, no `suspect_after`.",
                "Add it to `bootstrap_extensions`.",
            ),
            Self::StatsHidden => entry(
                "SG0401",
                "stats-hidden",
                Warning,
                "The stats matcher hides the module's statistics.",
                "Let their prefix through.",
            ),
            Self::AttemptsHidden => entry(
                "SG0402",
                "attempts-hidden",
                Info,
                "Envoy 1.38 shows a filter the number of attempts only by header, and the virtual host does not set it: outcomes are counted as unknown.",
                "Set `include_request_attempt_count` on the virtual host.",
            ),
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

impl std::str::FromStr for Code {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.iter().find(|code| code.id().eq_ignore_ascii_case(text) || code.name() == text);
        known.copied().ok_or_else(|| format!("no such code; they are {} to {}", first(), last()))
    }
}

fn first() -> &'static str {
    Code::ALL.first().map_or("", |code| code.id())
}

fn last() -> &'static str {
    Code::ALL.last().map_or("", |code| code.id())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn codes_and_names_are_unique_and_in_order() {
        let ids: Vec<&str> = Code::ALL.iter().map(|code| code.id()).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "{ids:?}");
        let names: BTreeSet<&str> = Code::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(names.len(), ids.len());
        assert!(Code::ALL.windows(2).all(|pair| pair[0] < pair[1]), "ALL is in the order of the enum");
        for code in Code::ALL {
            assert_eq!(code.id().parse(), Ok(*code));
            assert_eq!(code.name().parse(), Ok(*code));
        }
        assert!("SG9999".parse::<Code>().is_err());
    }
}
