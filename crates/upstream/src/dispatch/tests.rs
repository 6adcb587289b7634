//! Requests that a worker's queue does not take.

use std::sync::Arc;
use std::task::{Context, Waker};

use inflight_kserve::assets::{self, ModelDescription};
use inflight_kserve::step::FinishReason;
use inflight_models::dialect::{Surroundings, describe};
use inflight_models::sampling_params::SamplingParams;
use inflight_models::served::{Protocol, ServedModel};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::*;
use crate::connection::Transport;
use crate::delivery::Tried;
use crate::inbox::ChoiceOutputs;
use crate::phases::Disaggregate;
use crate::placement::BlockKeys;
use crate::registry::{Registry, SequenceOutput};
use crate::survival::Work;
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
    fn send(&self, _: Handle, prompt: &PromptRequest<'_>, choice: u32) -> Result<(), NotSent> {
        let is_context = matches!(prompt.phases, Phases::Context);
        let which = if is_context { "context" } else { "whole" };
        let took = if self.is_full { "refused" } else { "took" };
        let mut line = format!("{} {took} {which}", self.address);
        if prompt.params.max_tokens > 1 {
            let before: Vec<_> = prompt
                .generated
                .iter()
                .flatten()
                .map(|it| it.len())
                .collect();
            line = format!("{} {choice} {before:?}", prompt.text);
        }
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

/// A model of a plain Triton server, which generates one sequence a request.
fn triton() -> Protocol {
    use inflight_kserve::inference::{DataType, ModelConfig, ModelInput, ModelOutput};
    let input = |name: &str, kind: DataType, optional| ModelInput {
        name: name.to_owned(),
        data_type: kind as i32,
        dims: vec![-1],
        optional,
        ..ModelInput::default()
    };
    let config = ModelConfig {
        name: "m".to_owned(),
        max_batch_size: 8,
        input: vec![
            input("text_input", DataType::TypeString, false),
            input("max_tokens", DataType::TypeInt32, false),
        ],
        output: vec![ModelOutput {
            name: "text_output".to_owned(),
            data_type: DataType::TypeString as i32,
            ..ModelOutput::default()
        }],
        ..ModelConfig::default()
    };
    let surroundings = Surroundings {
        decoupled: false,
        excludes_prompt: true,
        adds_special_tokens: false,
    };
    Protocol::Triton(Arc::new(describe(&config, surroundings).unwrap().unwrap()))
}

#[test]
fn each_choice_of_each_prompt_has_its_place() {
    let mut params = SamplingParams::greedy();
    params.max_tokens = 9;
    // Of the second prompt the first and the third choice had begun, and the second had ended.
    let begun: [Option<&[i32]>; 3] = [Some(&[5]), None, Some(&[6, 7])];
    let prompt = |text, generated, phases| PromptRequest {
        params: &params,
        tokens: &[1, 2, 3],
        text,
        stop: &[],
        is_counted: true,
        request_id: "",
        trace: None,
        timeout: None,
        generated,
        phases,
    };
    let of_one = [
        "first 0 []",
        "first 1 []",
        "first 2 []",
        "second 0 [1]",
        "second 2 [2]",
    ];
    for (protocol, sent, sequences, places) in [
        (triton(), &of_one[..], 1, &[0, 1, 2, 3, 4, 5][..]),
        (
            Protocol::StepBatching,
            &["first 0 []", "second 0 [1, 2]"],
            3,
            &[0, 3],
        ),
    ] {
        let log = Log::default();
        let address: Arc<str> = "w0".into();
        let queue = Queue {
            address: Arc::clone(&address),
            is_full: false,
            log: Arc::clone(&log),
        };
        let served = ServedModel {
            description: ModelDescription::default(),
            text: None,
            template: None,
            protocol,
        };
        let registry = Arc::<Registry>::default();
        let connection = Connection::new(
            address,
            Arc::new(served),
            Arc::default(),
            Box::new(queue),
            Arc::clone(&registry),
        );
        let prompts = [
            prompt("first", &[], Phases::Both),
            prompt("second", &begun, Phases::Both),
        ];
        let connection = Arc::new(connection);
        let dispatched = send_all(Arc::clone(&connection), None, &prompts, 3, true).unwrap();
        assert_eq!(*log.lock(), sent);
        let handles = &dispatched.handles;
        assert_eq!(
            (handles.count(), handles.sequences()),
            (places.len(), sequences)
        );
        assert_eq!((handles.worker(), handles.is_context()), ("w0", false));
        // What comes for a handle is its first choice's. The one that had ended has none.
        let mut expected = places.to_vec();
        for handle in &handles.handles {
            let output = SequenceOutput {
                tokens: vec![8],
                finish: FinishReason::NotFinished,
                last: false,
                details: None,
            };
            registry.deliver(*handle, output, Instant::now());
        }
        expected.retain(|place| !(sequences == 1 && *place == 4));
        let mut outputs = ChoiceOutputs::default();
        let mut context = Context::from_waker(Waker::noop());
        assert!(
            dispatched
                .inbox
                .poll_take(&mut context, &mut outputs)
                .is_ready()
        );
        let found: Vec<u32> = outputs.list.iter().map(|one| one.choice).collect();
        assert_eq!(found, expected);
        assert_eq!(Work::server(&dispatched), "w0");
        assert!(std::ptr::eq(dispatched.life(), connection.life()));
        assert!(dispatched.server_stays());
        let count = sent.len();
        handles.cancel(1);
        handles.cancel(99);
        assert_eq!(log.lock()[count..], ["w0 stop"]);
        let contexts = [prompt("context", &[], Phases::Context)];
        let context = send_all(connection, None, &contexts, 1, false).unwrap();
        assert!(context.handles.is_context());
        context.handles.connection().leave();
        assert!(!dispatched.server_stays());
    }
}
