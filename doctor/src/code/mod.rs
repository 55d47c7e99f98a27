//! Everything that the doctor can find, as a closed list.

mod table;

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
