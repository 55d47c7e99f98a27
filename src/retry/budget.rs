//! A bound on the load that retries add: one per worker, without a clock of its own.
//!
//! Two sources pay for retries. A *floor* of `min_per_second` tokens refills steadily and holds at most
//! one second's worth. Every request deposits `ratio` tokens, which are spent oldest first and expire
//! a window after they were paid in.
//!
//! Whether Envoy retries is known only when the response begins, long after the request was given the
//! right to be retried. So a right is not a withdrawal: it is granted ([`Budget::grant`]), held, and settled
//! with what was really used ([`Budget::settle`]). A held right reserves what rights settled in the last
//! window used on average. Were each to reserve a whole token, a healthy service with thousands of requests
//! under way would be refused rights for no reason; were none to reserve anything, an outage would hand out
//! a right to every request that arrives before the first one fails.
//!
//! An example, with the defaults (0.2 for each request, 10 a second, a window of 10 s) and 100 requests a
//! second. The deposits of a window are worth 200 tokens, the floor 10 more. In health no right is used:
//! held ones reserve nothing, whatever their number. When one right in ten is used, 30 held ones reserve 3
//! tokens. When all are used, 30 held ones reserve 30, so that rights are refused as soon as 30 tokens are
//! left, not when the last one is gone and 30 more retries are under way.
//!
//! A right reserves only for the window in which it was granted. A request that waits longer (a long poll, a
//! slow upload) says nothing of how often rights are used now, and a thousand of them would keep rights from
//! everybody else just while a rollout needs some.
//!
//! ALWAYS
//! - Each deposit pays for at most one retry, and only within its window.
//! - Over any span of `t` seconds, retries ≤ `min_per_second` × (t + 1) + `ratio` × requests in the
//!   span and the window before it + what rights that were held when the tokens ran out still use.
//!   That last term is the overshoot. It is owed, and paid back before new rights are given, for at
//!   most one window.
//! - A right that was granted is settled exactly once.

use std::{collections::VecDeque, time::Duration};

use super::{config::BudgetSettings, decide::Allowance};

/// Into how many parts a window is cut; deposits of one part expire together.
pub const SLOTS: u64 = 20;

/// The budget of one worker.
#[derive(Debug, Clone)]
pub struct Budget {
    ratio: f64,
    per_second: f64,
    slot: Duration,
    /// Floor tokens, from 0 to one second's worth, as of `refilled`.
    floor: f64,
    refilled: Duration,
    /// Oldest first; at most [`SLOTS`] + 1.
    slots: VecDeque<Slot>,
}

/// A right that was granted and is not settled yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    slot: u64,
}

/// One part of the window.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    number: u64,
    /// Tokens left of what was paid in; negative: owed.
    tokens: f64,
    /// Rights that were granted in it and are not settled.
    held: u64,
    /// Rights that were settled in it, whenever they were granted.
    settled: u64,
    /// Retries that were made of those.
    used: u64,
}

// === impl Budget ===

impl Budget {
    /// A budget that begins at `now`, with a second's worth of floor tokens.
    ///
    /// Times are those of any clock that never runs backwards; one that does is taken to stand still.
    #[must_use]
    pub fn new(settings: &BudgetSettings, now: Duration) -> Self {
        let per_second = f64::from(settings.min_per_second.get());
        Self {
            ratio: settings.ratio.get(),
            per_second,
            slot: (settings.window() / u32::try_from(SLOTS).unwrap_or(1)).max(Duration::from_millis(1)),
            floor: per_second,
            refilled: now,
            slots: VecDeque::new(),
        }
    }

    /// Pays in for one request.
    pub fn request(&mut self, now: Duration) {
        self.advance(now);
        let mut paid = self.ratio;
        // What is owed comes first.
        for slot in self.slots.iter_mut().filter(|slot| slot.tokens < 0.0) {
            let part = paid.min(-slot.tokens);
            slot.tokens += part;
            paid -= part;
        }
        if let Some(slot) = self.slots.back_mut() {
            slot.tokens += paid;
        }
    }

    /// Whether one more right can be given.
    pub fn allowance(&mut self, now: Duration) -> Allowance {
        self.advance(now);
        // Ten deposits of 0.1 must buy one retry, in spite of rounding.
        const ROUNDING: f64 = 1e-6;
        if self.balance() - self.expected() + ROUNDING >= 1.0 { Allowance::Available } else { Allowance::Exhausted }
    }

    /// Gives a right, to be settled when the response begins or the request ends.
    pub fn grant(&mut self, now: Duration) -> Grant {
        self.advance(now);
        let slot = self.slots.back_mut();
        slot.map_or(Grant { slot: 0 }, |slot| {
            slot.held += 1;
            Grant { slot: slot.number }
        })
    }

    /// Takes back a right, of which `used` retries were made.
    pub fn settle(&mut self, now: Duration, grant: Grant, used: u32) {
        self.advance(now);
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.number == grant.slot) {
            slot.held = slot.held.saturating_sub(1);
        }
        let mut due = f64::from(used);
        let from_floor = due.min(self.floor);
        self.floor -= from_floor;
        due -= from_floor;
        for slot in self.slots.iter_mut().filter(|slot| slot.tokens > 0.0) {
            let part = due.min(slot.tokens);
            slot.tokens -= part;
            due -= part;
        }
        if let Some(slot) = self.slots.back_mut() {
            slot.tokens -= due;
            slot.settled += 1;
            slot.used += u64::from(used);
        }
    }

    /// Tokens that are left, negative when owed; held rights are not counted.
    #[must_use]
    pub fn balance(&self) -> f64 {
        self.floor + self.slots.iter().map(|slot| slot.tokens).sum::<f64>()
    }

    /// Rights of the last window that are held.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.slots.iter().map(|slot| slot.held).sum()
    }

    /// What the held rights will use if they use as much as those that were settled in the last window.
    fn expected(&self) -> f64 {
        let (mut held, mut settled, mut used) = (0, 0, 0);
        for slot in &self.slots {
            held += slot.held;
            settled += slot.settled;
            used += slot.used;
        }
        if settled == 0 {
            return 0.0;
        }
        #[expect(clippy::cast_precision_loss, reason = "an estimate over one window's requests")]
        let expected = held as f64 * used as f64 / settled as f64;
        expected
    }

    fn advance(&mut self, now: Duration) {
        let now = now.max(self.refilled);
        let passed = now.saturating_sub(self.refilled).as_secs_f64();
        self.floor = (self.floor + passed * self.per_second).min(self.per_second);
        self.refilled = now;
        let number = u64::try_from(now.as_nanos() / self.slot.as_nanos().max(1)).unwrap_or(u64::MAX);
        while self.slots.front().is_some_and(|slot| slot.number.saturating_add(SLOTS) < number) {
            self.slots.pop_front();
        }
        if self.slots.back().is_none_or(|slot| slot.number < number) {
            self.slots.push_back(Slot { number, ..Slot::default() });
        }
    }
}

#[cfg(test)]
#[path = "budget_tests.rs"]
mod tests;
