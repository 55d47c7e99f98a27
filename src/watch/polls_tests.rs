use super::*;

const SHORTEST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(5);

const QUIET: Answer = Answer::Read { changed: false, covered: false };
const CHANGED: Answer = Answer::Read { changed: true, covered: false };

fn polls(now: Instant) -> Polls {
    Polls::new(SHORTEST, LONGEST, now)
}

/// Polls as soon as one is due, from `now` on; gives the answer after no time. Returns when that was.
fn poll(polls: &mut Polls, answer: Answer, cost: Duration, now: Instant) -> Instant {
    let at = now + polls.due_in(now).expect("none is in flight");
    assert!(polls.start(|| false, at), "due after the pause that it named itself");
    polls.ended(answer, cost, at);
    at
}

#[test]
fn polls_become_rare_when_it_is_quiet_and_there_are_never_two_at_once() {
    let mut now = Instant::now();
    let mut polls = polls(now);
    let mut pauses = Vec::new();
    for _ in 0..7 {
        now = poll(&mut polls, QUIET, Duration::ZERO, now);
        pauses.push(polls.due_in(now).expect("idle"));
    }
    assert_eq!((pauses.first(), pauses.last()), (Some(&(SHORTEST * 2)), Some(&LONGEST)));
    polls.hint();
    assert_eq!(polls.due_in(now), Some(SHORTEST), "a hint brings the next poll near, but not nearer than this");
    assert!(polls.start(|| false, now + LONGEST));
    assert!(!polls.start(|| false, now + LONGEST * 2), "one at a time");
    assert_eq!(polls.due_in(now + LONGEST * 2), None);
}

#[test]
fn a_hint_during_a_poll_is_not_lost_to_it() {
    let now = Instant::now();
    let mut polls = polls(now);
    assert!(polls.start(|| false, now));
    polls.hint();
    polls.ended(QUIET, Duration::ZERO, now);
    assert_eq!(polls.due_in(now), Some(SHORTEST), "the answer may be older than what the hint is about");
}

#[test]
fn expensive_polls_are_spread_out() {
    let now = Instant::now();
    let mut polls = polls(now);
    poll(&mut polls, CHANGED, Duration::from_millis(10), now);
    let second = Some(Duration::from_secs(1));
    assert_eq!(polls.due_in(now), second, "a hundredth of the main thread's time, even after a change");
    polls.hint();
    assert_eq!(polls.due_in(now), second, "nor sooner for a hint");
    let mut polls = Polls::new(SHORTEST, LONGEST, now);
    poll(&mut polls, CHANGED, Duration::from_secs(1), now);
    assert_eq!(polls.due_in(now), Some(LONGEST), "but never less often than was asked for");
}

/// B16: an EDS update that Envoy takes in while a poll is in flight is no cost of the poll.
#[test]
fn what_else_the_main_thread_did_does_not_make_polls_rare() {
    let mut now = Instant::now();
    let mut polls = polls(now);
    for cost in [1, 1, 135, 135, 1] {
        now = poll(&mut polls, CHANGED, Duration::from_millis(cost), now);
        assert_eq!(polls.due_in(now), Some(SHORTEST), "after {cost} ms");
    }
}

/// B18: whatever happens to an answer, polls go on.
#[test]
fn a_poll_that_never_ends_does_not_end_all_others() {
    let now = Instant::now();
    let mut polls = polls(now);
    assert!(polls.start(|| false, now));
    assert!(!polls.start(|| false, now + Duration::from_secs(14)));
    assert!(polls.start(|| false, now + Duration::from_secs(15)));
}

#[test]
fn polls_that_would_tell_nothing_or_cannot_be_answered_are_rare_whatever_hints_say() {
    let now = Instant::now();
    let mut polls = polls(now);
    poll(&mut polls, Answer::Read { changed: true, covered: true }, Duration::ZERO, now);
    polls.hint();
    assert!(!polls.takes_hints());
    assert_eq!(polls.due_in(now), Some(Duration::from_secs(60)));
    assert!(polls.start(|| true, now + Duration::from_secs(60)), "now and then one looks for clusters that went");
    polls.ended(Answer::TooLarge, Duration::ZERO, now + Duration::from_secs(60));
    assert_eq!(polls.due_in(now + Duration::from_secs(60)), Some(Duration::from_secs(120)));
    assert!(polls.start(|| false, now + Duration::from_secs(180)));
    polls.ended(Answer::Failed, Duration::ZERO, now + Duration::from_secs(180));
    assert!(polls.takes_hints());
    // The validator has taken over since.
    assert!(!polls.start(|| true, now + Duration::from_secs(190)));
    assert_eq!(polls.due_in(now + Duration::from_secs(190)), Some(Duration::from_secs(50)));
}
