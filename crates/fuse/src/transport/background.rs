//! Threads in addition to the workers, of two kinds:
//! - Threads for requests of busy users (see `user_shares`). They have a lower priority than
//!   workers, and run on the CPUs that the caller may use. Such a thread keeps its priority, and
//!   seldom changes its CPUs. A worker would have to change both for one request, and change them
//!   back, which takes longer than most requests.
//! - Threads for requests of other callers while a single caller is served (see `single_caller`).
//!   They have the priority of a worker.
//!
//! `Shares` bounds how many of one user run at a time. Root and the mount's owner have no bound:
//! each of their threads that waits for a reply may occupy one thread here.

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
    /// Answers a request in the background, and then other parked requests of its user. `nr`: the
    /// user's slot, if the user has a limit. If no thread can be started, the calling thread
    /// answers.
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
            // Only requests that can be decoded are parked.
            if let Ok(request) = Request::decode(&parked.request) {
                if rank == Rank::Low {
                    Confinement::of(request.header.pid).apply();
                    priority::set(true);
                }
                self.answer(&parked.channel, &request, &mut reply);
                self.caller.raise_priority();
            }
            next = nr.and_then(|nr| self.shares.done(nr));
            // Threads of the ordinary rank keep it.
            if rank == Rank::Ordinary
                && let Some(parked) = next.take()
            {
                self.answer_in_background(nr, parked, Rank::Low);
            }
        }
    }
}
