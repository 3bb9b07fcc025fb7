//! Threads beside the workers, for two kinds of requests:
//! - those of busy users (see `user_shares`), with a lower priority than workers, on the CPUs that
//!   the caller may use. A worker would have to change its priority and its CPUs for one request,
//!   and change them back. That takes longer than most requests, on the CPU of the next caller.
//!   A thread of this kind keeps its priority, and seldom changes its CPUs;
//! - those of other threads beside a single caller (see `single_caller`), with the priority of a
//!   worker.
//!
//! `Shares` bounds how many of one user run at a time. Root and the mount's owner have no bound: a
//! thread for each of their threads that waits for a reply.

use std::sync::Arc;

use crate::protocol::reply::Reply;
use crate::protocol::request::Request;
use crate::transport::cpu_set::Confinement;
use crate::transport::parked_request::ParkedRequest;
use crate::transport::priority;
use crate::transport::user_shares::SlotNr;
use crate::transport::worker_pool::{Handler, WorkerPool};

/// How a request is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rank {
    /// As by a worker.
    Ordinary,
    /// For a busy user: with a lower priority, and on the caller's CPUs.
    Low,
}

impl<H: Handler> WorkerPool<H> {
    /// Has a request answered in the background, and what else of its user is parked. `nr`: where
    /// the user has a limit. Where no thread can be started for that, the calling one answers.
    pub(super) fn answer_in_background(
        self: &Arc<Self>,
        nr: Option<SlotNr>,
        parked: ParkedRequest,
        rank: Rank,
    ) {
        let pool = self.clone();
        let work = move || pool.answer_parked(nr, parked, rank);
        let threads = match rank {
            Rank::Ordinary => &self.background,
            Rank::Low => &self.low_background,
        };
        if let Err((error, work)) = threads.run(Box::new(work)) {
            crate::log(format_args!("cannot start a thread for a request: {error}"));
            work();
            priority::set(false);
            Confinement::default().apply();
        }
    }

    fn answer_parked(self: &Arc<Self>, nr: Option<SlotNr>, parked: ParkedRequest, rank: Rank) {
        let mut reply = Reply::new();
        let mut next = Some(parked);
        while let Some(parked) = next {
            // Those that cannot be decoded are not parked.
            if let Ok(request) = Request::decode(&parked.request) {
                if rank == Rank::Low {
                    Confinement::of(request.header.pid).apply();
                    priority::set(true);
                }
                self.answer(&parked.channel, &request, &mut reply);
                self.caller.raise_priority();
            }
            next = nr.and_then(|nr| self.shares.done(nr));
            // Threads of the ordinary rank stay that.
            if rank == Rank::Ordinary
                && let Some(parked) = next.take()
            {
                self.answer_in_background(nr, parked, Rank::Low);
            }
        }
    }
}
