//! The decision: one pure function from what is known of a request to what may be done with it.

use super::{
    headers::{MAX_RETRIES, parse_number},
    policy::{Policy, Ruling, Terms},
    request::Evidence,
    words::{Carrier, Condition},
};

/// Whether the budget can pay for a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowance {
    /// It can.
    Available,
    /// It is used up.
    Exhausted,
}

/// What may be done with a request, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict<'a> {
    /// What may be done.
    pub action: Action<'a>,
    /// Why.
    pub reason: Reason,
    /// The rule that matched, or whose match could not be told.
    pub rule: Option<&'a str>,
}

/// What may be done with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<'a> {
    /// It may be sent again under these terms.
    Retry(&'a Terms),
    /// It may be sent again only where it is certain that no upstream acted on it: under those of
    /// these conditions that prove so ([`Condition::proves_unprocessed`]).
    RetryUnprocessed(&'a [Condition]),
    /// Nothing is added.
    Leave,
}

/// Why a request may or may not be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// A rule allows it.
    RuleAllows,
    /// It carries an idempotency key.
    IdempotencyKey,
    /// Its method is in `methods`.
    MethodEligible,
    /// Its method is not in `methods`, and no rule and no key speaks for it.
    MethodNotEligible,
    /// It is gRPC, and no rule and no key speaks for it.
    GrpcNotDeclared,
    /// A replay could fail its precondition because of its own first effect.
    Precondition,
    /// It is not eligible, and its caller asks for hedging: any condition would have Envoy send it twice.
    Hedged,
    /// A rule denies it.
    RuleDenies,
    /// CONNECT: what follows is no request.
    Connect,
    /// An upgrade: what follows is no request.
    Upgrade,
    /// The request has no readable method or path.
    InvalidRequest,
    /// What a rule asks for could not be read.
    EvidenceUnknown,
    /// The caller asks for no retries: `x-envoy-max-retries: 0`.
    CallerDeclines,
    /// None of the configured conditions applies to this request.
    NoCondition,
    /// It says that its body is larger than what Envoy keeps for another attempt.
    BodyOverLimit,
    /// The budget is used up.
    BudgetExhausted,
}

// === impl Action ===

impl Action<'_> {
    /// The action's name in metadata and logs.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Retry(_) => "retry",
            Self::RetryUnprocessed(_) => "retry_unprocessed",
            Self::Leave => "leave",
        }
    }
}

// === impl Reason ===

impl Reason {
    /// Every reason, in the order of the documentation's table.
    pub const ALL: [Self; 16] = [
        Self::RuleAllows,
        Self::IdempotencyKey,
        Self::MethodEligible,
        Self::MethodNotEligible,
        Self::GrpcNotDeclared,
        Self::Precondition,
        Self::Hedged,
        Self::RuleDenies,
        Self::Connect,
        Self::Upgrade,
        Self::InvalidRequest,
        Self::EvidenceUnknown,
        Self::CallerDeclines,
        Self::NoCondition,
        Self::BodyOverLimit,
        Self::BudgetExhausted,
    ];

    /// The reason's name in metadata, logs and counters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RuleAllows => "rule_allows",
            Self::IdempotencyKey => "idempotency_key",
            Self::MethodEligible => "method_eligible",
            Self::MethodNotEligible => "method_not_eligible",
            Self::GrpcNotDeclared => "grpc_not_declared",
            Self::Precondition => "precondition",
            Self::Hedged => "hedged",
            Self::RuleDenies => "rule_denies",
            Self::Connect => "connect",
            Self::Upgrade => "upgrade",
            Self::InvalidRequest => "invalid_request",
            Self::EvidenceUnknown => "evidence_unknown",
            Self::CallerDeclines => "caller_declines",
            Self::NoCondition => "no_condition",
            Self::BodyOverLimit => "body_over_limit",
            Self::BudgetExhausted => "budget_exhausted",
        }
    }
}

/// Decides about one request.
///
/// Order: what is never retried; the caller's own refusal; the rules; gRPC, which only a rule or a key
/// makes eligible; the idempotency key; the method with its preconditions; the conditions; hedging; the
/// body's length; the budget.
///
/// Hedging: at the end of a per-try timeout Envoy's router sends a hedged request again if it has *any*
/// retry condition, whatever the condition says, while the first attempt still runs. So a hedged request
/// that is not eligible gets none. The filter sees the caller's header; the hedge policy of a route or
/// virtual host it cannot see, hence [`Policy::unprocessed`].
///
/// A body that Envoy cannot keep is refused here, not left to Envoy: between two attempts Envoy would
/// answer 507 where it answers the upstream's own error without a retry policy.
#[must_use]
pub fn decide<'a>(request: &Evidence<'_>, policy: &'a Policy, allowance: Allowance) -> Verdict<'a> {
    let verdict = eligibility(request, policy);
    let applies = match &verdict.action {
        Action::Retry(terms) => terms.on.iter().any(|condition| applies(*condition, request)),
        Action::RetryUnprocessed(on) => on.iter().any(|condition| condition.proves_unprocessed()),
        Action::Leave => return verdict,
    };
    if applies && matches!(verdict.action, Action::RetryUnprocessed(_)) && request.is_hedged() {
        return Verdict { action: Action::Leave, reason: Reason::Hedged, ..verdict };
    }
    if applies && request.body_over_limit() {
        return Verdict { action: Action::Leave, reason: Reason::BodyOverLimit, ..verdict };
    }
    match (applies, allowance) {
        (true, Allowance::Available) => verdict,
        (true, Allowance::Exhausted) => Verdict { action: Action::Leave, reason: Reason::BudgetExhausted, ..verdict },
        // A request that is not eligible keeps the reason that says so.
        (false, _) => match verdict.action {
            Action::Retry(_) => Verdict { action: Action::Leave, reason: Reason::NoCondition, ..verdict },
            Action::RetryUnprocessed(_) | Action::Leave => Verdict { action: Action::Leave, ..verdict },
        },
    }
}

/// Whether a condition can ever hold for the request: gRPC's need a gRPC answer.
#[must_use]
pub fn applies(condition: Condition, request: &Evidence<'_>) -> bool {
    match condition.carrier() {
        Carrier::Http => true,
        Carrier::Grpc => request.is_grpc(),
    }
}

fn eligibility<'a>(request: &Evidence<'_>, policy: &'a Policy) -> Verdict<'a> {
    let leave = |reason| Verdict { action: Action::Leave, reason, rule: None };
    let allow = |reason| Verdict { action: Action::Retry(&policy.terms), reason, rule: None };
    let unprocessed = |reason| match policy.unprocessed {
        true => Verdict { action: Action::RetryUnprocessed(&policy.terms.on), reason, rule: None },
        false => leave(reason),
    };

    let Some(method) = request.method.filter(|method| !method.is_empty()) else {
        return leave(Reason::InvalidRequest);
    };
    if method == b"CONNECT" {
        return leave(Reason::Connect);
    }
    if request.path.is_none_or(<[u8]>::is_empty) {
        return leave(Reason::InvalidRequest);
    }
    if request.is_upgrade() {
        return leave(Reason::Upgrade);
    }
    if caller_declines(request) {
        return leave(Reason::CallerDeclines);
    }
    match policy.ruling(request) {
        Ruling::By(rule) => {
            let rule_name = Some(rule.name.as_str());
            return match &rule.terms {
                Some(terms) => Verdict { action: Action::Retry(terms), reason: Reason::RuleAllows, rule: rule_name },
                None => Verdict { action: Action::Leave, reason: Reason::RuleDenies, rule: rule_name },
            };
        }
        Ruling::Unknown(rule) => {
            return Verdict { rule: Some(rule.name.as_str()), ..leave(Reason::EvidenceUnknown) };
        }
        Ruling::None => {}
    }
    if policy.has_key(request) {
        return allow(Reason::IdempotencyKey);
    }
    if request.is_grpc() {
        return unprocessed(Reason::GrpcNotDeclared);
    }
    if !policy.methods.contains(method) {
        return unprocessed(Reason::MethodNotEligible);
    }
    if has_precondition(method, request) {
        return unprocessed(Reason::Precondition);
    }
    allow(Reason::MethodEligible)
}

/// `x-envoy-max-retries: 0` is how Envoy lets a trusted caller switch retries off. Envoy's HTTP
/// connection manager has removed the header where the caller is not trusted.
fn caller_declines(request: &Evidence<'_>) -> bool {
    request.headers.joined(MAX_RETRIES).is_some_and(|value| parse_number(&value) == Some(0))
}

/// Whether the request's own first effect could make its replay fail with 412 (RFC 9110 section 13.1).
///
/// Safe methods change nothing, so their preconditions (`If-None-Match` and `If-Modified-Since` of a
/// cache, `If-Range`) evaluate the same again; only the preconditions that a changing method honours
/// count. `If-Modified-Since` and `If-Range` are ignored on methods other than GET and HEAD.
fn has_precondition(method: &[u8], request: &Evidence<'_>) -> bool {
    let safe = matches!(method, b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE");
    !safe && ["if-match", "if-none-match", "if-unmodified-since"].iter().any(|name| request.headers.contains(name))
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
