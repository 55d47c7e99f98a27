//! What happens to the pods, in an order that a seed decides.

use std::time::Duration;

/// One fault, at one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// EDS drops the pod, it vanishes without FIN, its address goes to a successor, EDS lists it.
    Vanish,
    /// The same, but the pod ends in order: GOAWAY and FIN.
    EndGracefully,
    /// EDS drops a pod that lives on, and lists it again.
    Flap,
    /// The pod vanishes and is replaced, and no update says so.
    ReplaceInTheDark,
    /// The pod's ztunnel ends all connections, and its port refuses for a while.
    RestartZtunnel,
}

/// A fault, the pod that it befalls, and the pause after it.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub fault: Fault,
    pub slot: usize,
    pub pause: Duration,
}

/// All steps of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub steps: Vec<Step>,
}

/// Pods of the service; one is away at a time.
pub const SLOTS: usize = 4;

/// Every run has so many of each, so that no seed is without a fault that matters.
const MIX: [(Fault, usize); 5] = [
    (Fault::Vanish, 6),
    (Fault::EndGracefully, 3),
    (Fault::Flap, 6),
    (Fault::ReplaceInTheDark, 2),
    (Fault::RestartZtunnel, 2),
];

// === impl Plan ===

impl Plan {
    /// The plan of a seed.
    pub fn seeded(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut faults: Vec<Fault> = MIX.iter().flat_map(|(fault, count)| vec![*fault; *count]).collect();
        random.shuffle(&mut faults);
        let steps = faults.into_iter().map(|fault| Step {
            fault,
            slot: random.usize(..SLOTS),
            pause: Duration::from_millis(random.u64(150..450)),
        });
        Self { seed, steps: steps.collect() }
    }
}
