use super::*;

fn ending(attempts: Attempts, status: u32, flags: u64, details: &'static str) -> Ending<'static> {
    Ending { attempts, status, flags: Some(flags), details: details.as_bytes(), body_over_limit: false }
}

const GIVEN: Rights = Rights { max_retries: 2, given: true, after_reset: true };

#[test]
fn outcomes_are_told_apart() {
    let uc = UPSTREAM_CONNECTION_TERMINATION;
    let reset = "upstream_reset_before_response_started{connection_termination}";
    for (ending, outcome) in [
        (ending(Attempts::Known(1), 200, 0, "via_upstream"), Outcome::NotNeeded),
        (ending(Attempts::Known(0), 404, 0, "route_not_found"), Outcome::NotNeeded),
        (ending(Attempts::Known(2), 200, 0, "via_upstream"), Outcome::Succeeded),
        (ending(Attempts::Known(2), 404, 0, "via_upstream"), Outcome::Succeeded),
        (ending(Attempts::Known(2), 503, uc, reset), Outcome::Exhausted),
        (ending(Attempts::Known(1), 503, uc, reset), Outcome::NotRetried),
        (ending(Attempts::Known(1), 200, uc, "upstream_reset_after_response_started{x}"), Outcome::NotRetried),
        (ending(Attempts::Known(1), 503, 0, "via_upstream"), Outcome::NotRetried),
        (ending(Attempts::Unknown, 503, 0, reset), Outcome::FailedUnknown),
        (ending(Attempts::Unknown, 200, 0, ""), Outcome::AnsweredUnknown),
        (
            ending(Attempts::Known(1), 0, DOWNSTREAM_CONNECTION_TERMINATION, "downstream_remote_disconnect"),
            Outcome::Cancelled,
        ),
    ] {
        assert_eq!(ending.outcome(), outcome, "{ending:?}");
    }
}

#[test]
fn a_body_that_was_too_large_to_keep_is_named_as_the_cause() {
    let refused =
        ending(Attempts::Known(1), 503, UPSTREAM_CONNECTION_TERMINATION, "upstream_reset_before_response_started{x}");
    assert_eq!(Ending { body_over_limit: true, ..refused }.outcome(), Outcome::BodyOverLimit);
    let begun =
        ending(Attempts::Known(1), 200, UPSTREAM_CONNECTION_TERMINATION, "upstream_reset_after_response_started{x}");
    assert_eq!(Ending { body_over_limit: true, ..begun }.outcome(), Outcome::NotRetried, "no body would have helped");
}

#[test]
fn the_budget_is_charged_with_what_was_used() {
    let uc = UPSTREAM_CONNECTION_TERMINATION;
    assert_eq!(ending(Attempts::Known(1), 200, 0, "").charge(&GIVEN), 0);
    assert_eq!(ending(Attempts::Known(3), 200, 0, "").charge(&GIVEN), 2);
    assert_eq!(ending(Attempts::Known(0), 404, 0, "").charge(&GIVEN), 0);
    assert_eq!(ending(Attempts::Unknown, 200, 0, "").charge(&GIVEN), 0, "an answer is taken for a first answer");
    assert_eq!(ending(Attempts::Unknown, 503, uc, "").charge(&GIVEN), 2, "a failure is taken for the worst case");
}

#[test]
fn observing_charges_what_enforcing_would_have_used() {
    let observed = Rights { given: false, ..GIVEN };
    let uc = UPSTREAM_CONNECTION_TERMINATION;
    assert_eq!(ending(Attempts::Known(1), 503, uc, "").charge(&observed), 2);
    assert_eq!(ending(Attempts::Known(1), 200, 0, "").charge(&observed), 0);
    let unprocessed = Rights { after_reset: false, ..observed };
    assert_eq!(ending(Attempts::Known(1), 503, uc, "").charge(&unprocessed), 0, "a reset gave it no right");
    let refused = "upstream_reset_before_response_started{remote_connection_failure|x}";
    assert_eq!(ending(Attempts::Known(1), 503, 0, refused).charge(&unprocessed), 2, "a failed connect did");
}

#[test]
fn outcomes_have_distinct_names() {
    let names: std::collections::HashSet<_> = Outcome::ALL.iter().map(|outcome| outcome.name()).collect();
    assert_eq!(names.len(), Outcome::ALL.len());
}
