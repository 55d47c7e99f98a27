use super::*;

const SUSPECT_AFTER: u64 = 30;

#[derive(Clone, Copy)]
enum At {
    /// A look: second, and what the gauge says.
    Look(u64, bool),
    /// No answer to a look.
    Blind(u64),
    /// Endpoints change.
    News(u64),
}
use At::{Blind, Look, News};

/// The fences that a series of events leads to, as (second, why).
fn fences(series: &[At]) -> Vec<(u64, FenceAll)> {
    let start = Instant::now();
    let mut control_plane = ControlPlane::new(Duration::from_secs(SUSPECT_AFTER));
    let mut fences = Vec::new();
    for at in series {
        let (second, event) = match *at {
            Look(second, connected) => (second, Event::Look(Some(connected))),
            Blind(second) => (second, Event::Look(None)),
            News(second) => (second, Event::News),
        };
        let fence = control_plane.on(event, start + Duration::from_secs(second));
        fences.extend(fence.map(|why| (second, why)));
    }
    fences
}

#[test]
fn a_long_absence_fences_once_while_it_lasts_and_once_when_it_has_ended_for_sure() {
    let series = [
        Look(0, true),
        Look(10, false),
        Look(31, false),
        Look(40, false),
        Look(50, true),
        Look(55, true),
        Look(60, true),
        Look(70, true),
    ];
    assert_eq!(fences(&series), [(31, FenceAll::Absent), (60, FenceAll::Returned)]);
}

#[test]
fn news_ends_an_absence_at_once() {
    let series = [Look(0, true), Look(31, false), News(49), Look(50, true), Look(60, true), Look(70, true)];
    assert_eq!(fences(&series), [(31, FenceAll::Absent), (49, FenceAll::News)], "no third fence for the return");
    let before = [Look(5, true), News(6), Look(40, false), Look(50, true), Look(60, true)];
    assert_eq!(
        fences(&before),
        [(40, FenceAll::Absent), (60, FenceAll::Returned)],
        "news from before the absence says nothing of it"
    );
}

/// B1: the control plane comes back briefly, says something, and goes away for an hour.
#[test]
fn an_absence_after_a_brief_return_is_fenced_as_any_other() {
    let looks = (65..3_600).map(|second| Look(second, false));
    let polls: Vec<_> =
        [Look(0, true), Look(31, false), News(62)].into_iter().chain(looks).chain([News(3_602)]).collect();
    let seen = fences(&polls);
    assert_eq!(seen.first_chunk(), Some(&[(31, FenceAll::Absent), (62, FenceAll::News), (92, FenceAll::Absent)]));
    assert_eq!(seen.last(), Some(&(3_602, FenceAll::News)), "{seen:?}");
    assert_eq!(
        fences(&[Look(0, true), Look(31, false), News(62), Look(65, false), News(3_602)]),
        [(31, FenceAll::Absent), (62, FenceAll::News), (3_602, FenceAll::News)],
        "also where nobody looked meanwhile"
    );
}

/// B2: another management server's endpoints change while the control plane is away.
#[test]
fn news_from_another_server_does_not_hide_the_return() {
    let looks = |from: u64, to: u64, connected| (from..to).map(move |second| Look(second, connected));
    let series: Vec<_> = [Look(0, true)]
        .into_iter()
        .chain(looks(1, 50, false))
        .chain([News(50)])
        .chain(looks(51, 3_600, false))
        .chain(looks(3_600, 3_620, true))
        .collect();
    let seen = fences(&series);
    assert_eq!(seen.first(), Some(&(30, FenceAll::Absent)));
    assert_eq!(seen.last(), Some(&(3_610, FenceAll::Returned)), "{seen:?}");
    // An attempt to connect is seen just when the other server's news comes.
    let series: Vec<_> = [Look(0, true), Look(30, false), News(50), Look(51, true)]
        .into_iter()
        .chain(looks(52, 3_600, false))
        .chain(looks(3_600, 3_620, true))
        .collect();
    assert_eq!(fences(&series).last(), Some(&(3_610, FenceAll::Returned)));
}

#[test]
fn news_while_the_control_plane_is_away_is_no_storm_of_fences() {
    let news = (1..600).flat_map(|second| [Look(second, false), News(second)]);
    let series: Vec<_> = [Look(0, true)].into_iter().chain(news).collect();
    let seen = fences(&series);
    assert!(seen.len() <= 600 / SUSPECT_AFTER as usize, "{seen:?}");
}

/// B8: what happened between two looks that are far apart is not known.
#[test]
fn two_looks_that_are_far_apart_leave_room_for_an_absence() {
    assert_eq!(fences(&[Look(0, true), Look(100, true)]), [(100, FenceAll::Returned)]);
    assert_eq!(fences(&[Look(0, true), Blind(10), Blind(20), Look(29, true)]), []);
}

#[test]
fn attempts_to_connect_are_no_connection() {
    // Each attempt is seen as a connection; the control plane cannot be reached from second 1 to 300.
    let attempts = (1..300).map(|second| Look(second, second % 6 < 4));
    let mut series: Vec<_> = [Look(0, true)].into_iter().chain(attempts).collect();
    let seen = fences(&series);
    assert_eq!(seen.len(), 1, "{seen:?}");
    let (second, why) = seen[0];
    assert_eq!(why, FenceAll::Absent);
    assert!(second <= SUSPECT_AFTER + 4, "no attempt delays the suspicion: {second}");
    series.extend((300..320).map(|second| Look(second, true)));
    assert_eq!(fences(&series).last().map(|(_, why)| *why), Some(FenceAll::Returned));
}

#[test]
fn a_connection_that_flaps_at_every_look_is_suspected_once() {
    let flaps: Vec<_> = (0..100).map(|second| Look(second, second % 2 == 0)).collect();
    assert_eq!(fences(&flaps).len(), 1);
}

#[test]
fn a_short_absence_and_a_slow_start_call_for_nothing() {
    let short = [(0, true), (10, false), (20, true), (30, true), (45, false), (55, true), (70, true)];
    assert_eq!(fences(&short.map(|(second, connected)| Look(second, connected))), []);
    assert_eq!(fences(&[Look(0, false), News(1), Look(100, false), Look(200, true), Look(210, true)]), []);
    let settling = [(0, true), (10, false), (25, true), (31, true), (35, true), (40, true)];
    let settling = settling.map(|(second, connected)| Look(second, connected));
    assert_eq!(fences(&settling), [], "the time that a connection takes to count is no part of the absence");
    assert_eq!(
        fences(&[Look(0, true), Look(10, false), News(12), Look(13, true), Look(43, false)]),
        [(43, FenceAll::Absent)]
    );
}

#[test]
fn an_absence_that_ends_between_two_looks_counts_from_the_last_sight() {
    let series = [Look(0, true), Look(29, false), Look(31, true), Look(41, true)];
    assert_eq!(fences(&series), [(41, FenceAll::Returned)]);
}

#[test]
fn a_gauge_that_cannot_be_seen_tells_nothing() {
    let mut control_plane = ControlPlane::new(Duration::from_secs(SUSPECT_AFTER));
    let start = Instant::now();
    assert_eq!(control_plane.on(Event::Look(None), start), None);
    assert_eq!(control_plane.connected(), None);
    control_plane.on(Event::Look(Some(true)), start);
    assert_eq!(control_plane.connected(), Some(true));
}
