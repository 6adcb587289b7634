//! The server of a started request, and the old server while a new one is on trial. Owns that work nobody waits for is
//! stopped, and what the log says of a move. When a request moves is [`Survival`]'s; what is
//! sent and how an answer is read is its adapter's.

use std::sync::Arc;
use std::task::Context;

use tokio::time::Instant;

use super::inbox::Notice;
use super::survival::{Mover, Step, Survival, Work};
use crate::metrics::RetryReason;

/// See the module.
#[derive(Debug)]
pub struct Holding<M: Mover> {
    request_id: Arc<str>,
    work: M::Work,
    /// At the server that keeps the request while another one has it on trial.
    former: Option<Box<M::Work>>,
    /// `None`: it ends with its server.
    moving: Option<Box<Moving<M>>>,
}

#[derive(Debug)]
struct Moving<M: Mover> {
    request: M,
    survival: Survival<M::Error>,
}

/// What became of a request that may move.
#[derive(Debug)]
pub enum Turn<E> {
    /// The same server has it.
    Stays,
    /// No server has it yet.
    Waits,
    /// Another server has it, for this reason; `None`: for what follows its context.
    Moved(Option<RetryReason>),
    /// It ends.
    Failed(E),
}

impl<M: Mover> Holding<M> {
    /// For a request that a server has. `moving`: how it continues at another one, if it can.
    pub fn new(
        request_id: &Arc<str>,
        work: M::Work,
        moving: Option<(M, Survival<M::Error>)>,
    ) -> Self {
        let moving = moving.map(|(request, survival)| Box::new(Moving { request, survival }));
        Self {
            request_id: Arc::clone(request_id),
            work,
            former: None,
            moving,
        }
    }

    /// At the server that has it.
    pub fn work(&self) -> &M::Work {
        &self.work
    }

    /// At the server that has it.
    pub fn work_mut(&mut self) -> &mut M::Work {
        &mut self.work
    }

    /// The request; `None`: it ends with its server.
    pub fn request(&self) -> Option<&M> {
        self.moving.as_ref().map(|moving| &moving.request)
    }

    /// The request; `None`: it ends with its server.
    pub fn request_mut(&mut self) -> Option<&mut M> {
        self.moving.as_mut().map(|moving| &mut moving.request)
    }

    /// When and how it moves; `None`: it ends with its server.
    pub fn survival(&self) -> Option<&Survival<M::Error>> {
        self.moving.as_ref().map(|moving| &moving.survival)
    }

    /// Another server has it from the beginning. The work at the first one is stopped.
    pub fn restart(&mut self, work: M::Work) {
        self.work = work;
        self.former = None;
        if let Some(moving) = &mut self.moving {
            moving.survival.restart();
        }
    }

    /// From here on it ends with its server.
    pub fn settle(&mut self) {
        self.moving = None;
    }

    /// It has ended; the server that kept it need not any longer.
    pub fn end(&mut self) {
        self.moving = None;
        self.former = None;
    }

    /// Moves it if that is due and a server takes it, and looks again soon otherwise.
    #[inline]
    pub fn poll(&mut self, context: &mut Context<'_>) -> Turn<M::Error> {
        let is_due = |moving: &Moving<M>| moving.survival.is_due();
        match self.moving.as_deref().is_some_and(is_due) || self.former.is_some() {
            true => self.poll_move(context),
            false => Turn::Stays,
        }
    }

    fn poll_move(&mut self, context: &mut Context<'_>) -> Turn<M::Error> {
        let Some(moving) = &mut self.moving else {
            return Turn::Stays;
        };
        let Moving { request, survival } = &mut **moving;
        let turn = match survival.poll(context, request, &mut self.work) {
            Step::Stays => Turn::Stays,
            Step::Waits => return Turn::Waits,
            Step::Failed(error) => return Turn::Failed(error),
            Step::Moved(next, reason) => {
                // A hand-over is as it should be.
                if reason.is_some() {
                    tracing::info!(
                        request_id = %self.request_id,
                        from = self.work.server(),
                        to = next.server(),
                        tokens = request.generated_tokens(),
                        "request continues at another worker"
                    );
                }
                let before = std::mem::replace(&mut self.work, next);
                if survival.is_on_trial() {
                    self.former.get_or_insert_with(|| Box::new(before));
                }
                request.has_moved(&mut self.work, survival.way());
                Turn::Moved(reason)
            }
        };
        if survival.poll_trial(context) {
            self.former = None;
        }
        turn
    }

    /// Its server has failed it. `reason`: why another one may do better. A server that kept it has it again.
    pub fn fail(&mut self, error: M::Error, reason: Option<RetryReason>) -> Turn<M::Error> {
        let Some(moving) = &mut self.moving else {
            return Turn::Failed(error);
        };
        let Moving { request, survival } = &mut **moving;
        if let Some(former) = self.former.take() {
            survival.take_back(reason, self.work.life());
            tracing::info!(
                request_id = %self.request_id,
                from = self.work.server(),
                to = former.server(),
                "request kept on its worker: the new one failed it"
            );
            self.work = *former;
            request.has_moved(&mut self.work, survival.way());
            return Turn::Moved(Some(reason.unwrap_or(RetryReason::Unavailable)));
        }
        let Some(reason) = reason else {
            return Turn::Failed(error);
        };
        match survival.lose(error, reason, self.work.life(), request.is_over()) {
            Ok(()) => Turn::Waits,
            Err(error) => Turn::Failed(error),
        }
    }

    /// Its context is computed, and another server continues. `error`: what its client hears if none takes it.
    ///
    /// # Errors
    /// `error`: it ends with its server.
    pub fn hand_over(&mut self, error: M::Error) -> Result<(), M::Error> {
        match &mut self.moving {
            Some(moving) => {
                moving.survival.hand_over(error);
                Ok(())
            }
            None => Err(error),
        }
    }

    /// Waits for a server after `sent` have failed the request, which has generated nothing.
    ///
    /// # Errors
    /// It may not continue.
    pub fn outlive(&mut self, error: M::Error, sent: usize) -> Result<(), M::Error> {
        let Some(moving) = &mut self.moving else {
            return Err(error);
        };
        let Moving { request, survival } = &mut **moving;
        survival.outlive(error, sent, self.work.life(), request.is_over())
    }

    /// Notes that output came, when, and whether any of it was new.
    pub fn heard(&mut self, has_new: bool, at: Instant) {
        if let Some(moving) = &mut self.moving {
            moving.survival.heard(has_new, at);
            if !moving.survival.is_on_trial() {
                self.former = None;
            }
        }
    }

    /// Notes that another server generated something else, which ends the request.
    pub fn differs(&self) {
        if let Some(moving) = &self.moving {
            moving.survival.differs();
        }
    }

    /// Notes that the request should continue elsewhere.
    pub fn notice(&mut self, notice: Notice) {
        if let Some(moving) = &mut self.moving {
            moving.survival.notice(notice);
        }
    }
}
