//! Requests that a worker's queue does not take.

use std::sync::Arc;

use inflight_kserve::assets::{self, ModelDescription};
use parking_lot::Mutex;

use super::*;
use crate::connection::Transport;
use crate::delivery::Tried;
use crate::model::sampling_params::SamplingParams;
use crate::model::served::{Protocol, ServedModel};
use crate::phases::Disaggregate;
use crate::placement::BlockKeys;
use crate::table::Table;

/// What went to workers, in order.
type Log = Arc<Mutex<Vec<String>>>;

#[derive(Debug)]
struct Queue {
    address: Arc<str>,
    is_full: bool,
    log: Log,
}

impl Transport for Queue {
    fn send(&self, _: Handle, prompt: &PromptRequest<'_>, _: u32) -> Result<(), NotSent> {
        let is_context = matches!(prompt.phases, Phases::Context);
        let which = if is_context { "context" } else { "whole" };
        let took = if self.is_full { "refused" } else { "took" };
        let line = format!("{} {took} {which}", self.address);
        self.log.lock().push(line);
        match self.is_full {
            true => Err(NotSent::Full),
            false => Ok(()),
        }
    }

    fn stop(&self, _: Handle) {
        self.log.lock().push(format!("{} stop", self.address));
    }

    fn close(&self) {}
}

/// Workers of model `m` with these phases; whether each one's queue is full.
fn table(workers: &[(assets::Phases, bool)]) -> (Table, Log) {
    let addresses: Vec<String> = (0..workers.len()).map(|it| format!("w{it}")).collect();
    let table = Table::new(&addresses);
    let log = Log::default();
    for (slot, (phases, is_full)) in table.workers().iter().zip(workers) {
        let mut description = ModelDescription {
            served_model_name: "m".to_owned(),
            capabilities: vec!["context_phase".to_owned()],
            ..ModelDescription::default()
        };
        description.set_phases(*phases);
        let served = ServedModel {
            description,
            text: None,
            template: None,
            protocol: Protocol::StepBatching,
        };
        let queue = Queue {
            address: Arc::clone(&slot.address),
            is_full: *is_full,
            log: Arc::clone(&log),
        };
        let connection = Connection::new(
            Arc::clone(&slot.address),
            Arc::new(served),
            Arc::clone(&slot.pulse),
            Box::new(queue),
            Arc::default(),
        );
        table.set_ready(slot, vec![Arc::new(connection)]);
    }
    (table, log)
}

/// Sends one prompt, of which contexts are computed elsewhere; then its client leaves.
fn send(table: &Table) -> Result<Arc<str>, NotDispatched> {
    let params = SamplingParams::greedy();
    let prompts = [PromptRequest {
        params: &params,
        tokens: &[1, 2, 3],
        text: "",
        stop: &[],
        is_counted: true,
        request_id: "",
        trace: None,
        timeout: None,
        generated: &[],
        phases: Phases::Both,
    }];
    let suits = Suits {
        content_hash: "",
        adapter: None,
        phases: Phases::Both,
        resumes: false,
        weights: None,
        watched: false,
        without: None,
    };
    let (named, mut tried) = (BlockKeys::default(), Tried::default());
    let asked = Prompts::new(&prompts, &named);
    let entry = table.find("m").unwrap();
    let which = Disaggregate::Always;
    let sent = dispatch_phases(&entry, which, suits, &mut tried, &asked, 1)?;
    Ok(Arc::clone(&sent.handles.connection().address))
}

#[test]
fn a_request_that_no_queue_takes_is_stopped_nowhere() {
    let (table, log) = table(&[(assets::Phases::Both, true); 2]);
    assert_eq!(send(&table).unwrap_err(), NotDispatched::Full);
    assert_eq!(*log.lock(), ["w0 refused whole", "w1 refused whole"]);
}

#[test]
fn workers_for_contexts_that_are_full_do_not_count_as_reached() {
    let (contexts, other) = (assets::Phases::Context, assets::Phases::Generation);
    let workers = [
        (contexts, true),
        (contexts, true),
        (contexts, true),
        (other, false),
    ];
    let (table, log) = table(&workers);
    assert_eq!(&*send(&table).unwrap(), "w3");
    let refused = [
        "w0 refused context",
        "w1 refused context",
        "w2 refused context",
    ];
    let log = log.lock();
    assert_eq!(log[..3], refused);
    assert_eq!(log[3..], ["w3 took whole", "w3 stop"]);
}
