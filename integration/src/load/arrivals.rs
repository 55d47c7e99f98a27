//! When requests are due, and of which class each one is.

use std::time::Duration;

/// The arrival process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// Equal gaps.
    Fixed,
    /// Exponentially distributed gaps: independent callers. The same seed gives the same gaps.
    Poisson {
        /// Seed of the generator.
        seed: u64,
    },
}

/// Offsets of the arrivals from the start of the run; endless and never decreasing.
#[derive(Debug)]
pub struct Schedule {
    rate: f64,
    /// Arrivals so far, for `Fixed`: computed from the index, so that no rounding adds up.
    index: u64,
    /// Last offset in seconds, for `Poisson`.
    at: f64,
    random: Option<fastrand::Rng>,
}

/// Classes in an exact, deterministic ratio, evenly interleaved (smooth weighted round robin): after
/// every full cycle of `sum(weights)` picks each class was picked exactly `weight` times.
#[derive(Debug)]
pub struct Mix {
    weights: Vec<i64>,
    credit: Vec<i64>,
}

// === impl Schedule ===

impl Schedule {
    /// `rate` is in arrivals per second and must be finite and above zero; [`super::Plan`] checks it.
    #[must_use]
    pub fn new(arrivals: Arrivals, rate: f64) -> Self {
        let random = match arrivals {
            Arrivals::Fixed => None,
            Arrivals::Poisson { seed } => Some(fastrand::Rng::with_seed(seed)),
        };
        Self { rate, index: 0, at: 0.0, random }
    }
}

impl Iterator for Schedule {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let seconds = match &mut self.random {
            None => self.index as f64 / self.rate,
            Some(random) => {
                // 1 - u lies in (0, 1], so the logarithm is finite.
                self.at -= (1.0 - random.f64()).ln() / self.rate;
                self.at
            }
        };
        self.index += 1;
        Duration::try_from_secs_f64(seconds).ok()
    }
}

// === impl Mix ===

impl Mix {
    /// A mix of classes by weight. Classes of weight zero are never picked.
    #[must_use]
    pub fn new(weights: impl IntoIterator<Item = u32>) -> Self {
        let weights: Vec<i64> = weights.into_iter().map(i64::from).collect();
        let credit = vec![0; weights.len()];
        Self { weights, credit }
    }

    /// Index of the class of the next arrival; `None` if all weights are zero.
    pub fn pick(&mut self) -> Option<usize> {
        let total: i64 = self.weights.iter().sum();
        for (credit, weight) in self.credit.iter_mut().zip(&self.weights) {
            *credit += weight;
        }
        let (index, credit) = self
            .credit
            .iter_mut()
            .enumerate()
            .zip(&self.weights)
            .filter(|(_, weight)| **weight > 0)
            .map(|(slot, _)| slot)
            // The first of equals, so that the order does not depend on the iterator's tie rule.
            .max_by_key(|(index, credit)| (**credit, std::cmp::Reverse(*index)))?;
        *credit -= total;
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fixed_arrivals_do_not_drift() {
        let last = Schedule::new(Arrivals::Fixed, 300.0).nth(3_000_000);
        assert_eq!(last, Some(Duration::from_secs(10_000)));
    }

    #[test]
    fn poisson_arrivals_keep_the_mean_rate_and_repeat_for_a_seed() {
        let offsets = |seed| Schedule::new(Arrivals::Poisson { seed }, 200.0).take(20_000);
        let last = offsets(7).last().unwrap().as_secs_f64();
        assert!((97.0..103.0).contains(&last), "20,000 arrivals at 200/s took {last} s");
        assert!(offsets(7).eq(offsets(7)));
        assert!(!offsets(7).eq(offsets(8)));
    }

    proptest! {
        #[test]
        fn every_cycle_holds_the_exact_ratio(weights in prop::collection::vec(0_u32..20, 1..5), cycles in 1_usize..4) {
            let total: u32 = weights.iter().sum();
            let mut mix = Mix::new(weights.clone());
            if total == 0 {
                prop_assert_eq!(mix.pick(), None);
                return Ok(());
            }
            let mut counts = vec![0; weights.len()];
            for _ in 0..cycles * total as usize {
                counts[mix.pick().unwrap()] += 1;
            }
            let expected: Vec<u32> = weights.iter().map(|w| w * cycles as u32).collect();
            prop_assert_eq!(counts, expected);
        }

        #[test]
        fn arrivals_never_go_back_in_time(seed: u64, rate in 1.0_f64..10_000.0) {
            let offsets: Vec<_> = Schedule::new(Arrivals::Poisson { seed }, rate).take(500).collect();
            prop_assert!(offsets.is_sorted());
        }
    }
}
