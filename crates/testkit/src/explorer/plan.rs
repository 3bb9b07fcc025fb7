//! The amount of exploration.

use crate::crash::Effort;

/// The amount of exploration. A rate of n means one in n states, 0 means never.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub seed: u64,
    pub effort: Effort,
    /// For crashes during recovery.
    pub nested_effort: Effort,
    /// Crashes within crashes: 0 crashes the run only, 1 also its recovery, and so on.
    pub depth: usize,
    pub nested_one_in: u64,
    /// The approximate limit for crashes of one recovery. If there are more, a seeded sample of its
    /// points.
    pub nested_states: u64,
    pub inspect_one_in: u64,
    pub second_one_in: u64,
    pub rotten_one_in: u64,
    /// The most states to judge. If there are more, a seeded sample of the points.
    pub states: u64,
    /// Tries fewer states, from all over its run, of a subject whose states take long
    /// ([`super::Subject::weight`]).
    pub thins_out: bool,
    pub threads: usize,
    /// Stops at this number of findings.
    pub findings: usize,
    /// Shows a progress line on the terminal.
    pub progress: bool,
}

impl Plan {
    /// For tests: seconds per workload.
    pub fn quick() -> Plan {
        Plan {
            seed: 1,
            effort: Effort { exhaustive: 5, per_point: 24, noise: false },
            nested_effort: Effort { exhaustive: 3, per_point: 6, noise: false },
            depth: 1,
            nested_one_in: 8,
            nested_states: 60,
            inspect_one_in: 8,
            second_one_in: 150,
            rotten_one_in: 4,
            states: 1500,
            thins_out: true,
            threads: 2,
            findings: 3,
            progress: true,
        }
    }

    /// For `make crash-long`: minutes per workload.
    pub fn thorough() -> Plan {
        Plan {
            effort: Effort { exhaustive: 7, per_point: 300, noise: false },
            nested_effort: Effort { exhaustive: 5, per_point: 24, noise: false },
            depth: 2,
            nested_one_in: 20,
            nested_states: 100,
            inspect_one_in: 4,
            second_one_in: 60,
            rotten_one_in: 2,
            states: 40_000,
            thins_out: false,
            findings: 10,
            ..Plan::quick()
        }
    }

    /// Whether it is a plan of `make crash-long`.
    pub fn is_long(&self) -> bool {
        self.depth > 1
    }

    /// The plan for a subject of this weight.
    pub(super) fn thinned(self, weight: u64) -> Plan {
        if !self.thins_out || weight <= 1 {
            return Plan { thins_out: false, ..self };
        }
        let effort = Effort { exhaustive: 2, per_point: 8.min(self.effort.per_point), ..self.effort };
        Plan { effort, states: self.states / weight, nested_states: self.nested_states / weight, ..self }
    }
}
