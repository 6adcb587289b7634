//! What several servers say, as one would. Pure.

use std::collections::BTreeMap;

use inflight_kserve::inference::repository_index_response::ModelIndex;
use inflight_kserve::inference::{
    InferStatistics, ModelStatistics, ModelStatisticsResponse, RepositoryIndexResponse,
    StatisticDuration,
};

const READY: &str = "READY";

/// Every model once; it is ready where any server has it ready.
pub(super) fn index(answers: Vec<RepositoryIndexResponse>) -> RepositoryIndexResponse {
    let mut models: BTreeMap<(String, String), ModelIndex> = BTreeMap::new();
    for model in answers.into_iter().flat_map(|answer| answer.models) {
        let key = (model.name.clone(), model.version.clone());
        let entry = models.entry(key).or_insert_with(|| model.clone());
        if model.state == READY {
            *entry = model;
        }
    }
    RepositoryIndexResponse {
        models: models.into_values().collect(),
    }
}

/// The statistics of every model, summed over its servers.
pub(super) fn statistics(answers: Vec<ModelStatisticsResponse>) -> ModelStatisticsResponse {
    let mut models: BTreeMap<(String, String), ModelStatistics> = BTreeMap::new();
    for model in answers.into_iter().flat_map(|answer| answer.model_stats) {
        let key = (model.name.clone(), model.version.clone());
        match models.entry(key) {
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(model);
            }
            std::collections::btree_map::Entry::Occupied(mut entry) => add(entry.get_mut(), model),
        }
    }
    ModelStatisticsResponse {
        model_stats: models.into_values().collect(),
    }
}

fn add(sum: &mut ModelStatistics, other: ModelStatistics) {
    sum.last_inference = sum.last_inference.max(other.last_inference);
    sum.inference_count = sum.inference_count.saturating_add(other.inference_count);
    sum.execution_count = sum.execution_count.saturating_add(other.execution_count);
    if let Some(other) = other.inference_stats {
        add_phases(sum.inference_stats.get_or_insert_default(), other);
    }
    for batch in other.batch_stats {
        let same = sum
            .batch_stats
            .iter_mut()
            .find(|own| own.batch_size == batch.batch_size);
        match same {
            Some(own) => {
                add_duration(&mut own.compute_input, batch.compute_input);
                add_duration(&mut own.compute_infer, batch.compute_infer);
                add_duration(&mut own.compute_output, batch.compute_output);
            }
            None => sum.batch_stats.push(batch),
        }
    }
    for (position, response) in other.response_stats {
        let own = sum.response_stats.entry(position).or_default();
        add_duration(&mut own.compute_infer, response.compute_infer);
        add_duration(&mut own.compute_output, response.compute_output);
        add_duration(&mut own.success, response.success);
        add_duration(&mut own.fail, response.fail);
        add_duration(&mut own.empty_response, response.empty_response);
        add_duration(&mut own.cancel, response.cancel);
    }
    // Devices of different machines, perhaps of one number: each is listed.
    sum.memory_usage.extend(other.memory_usage);
}

fn add_phases(sum: &mut InferStatistics, other: InferStatistics) {
    add_duration(&mut sum.success, other.success);
    add_duration(&mut sum.fail, other.fail);
    add_duration(&mut sum.queue, other.queue);
    add_duration(&mut sum.compute_input, other.compute_input);
    add_duration(&mut sum.compute_infer, other.compute_infer);
    add_duration(&mut sum.compute_output, other.compute_output);
    add_duration(&mut sum.cache_hit, other.cache_hit);
    add_duration(&mut sum.cache_miss, other.cache_miss);
}

fn add_duration(sum: &mut Option<StatisticDuration>, other: Option<StatisticDuration>) {
    if let Some(other) = other {
        let sum = sum.get_or_insert_default();
        sum.count = sum.count.saturating_add(other.count);
        sum.ns = sum.ns.saturating_add(other.ns);
    }
}

#[cfg(test)]
mod tests {
    use inflight_kserve::inference::{InferBatchStatistics, InferResponseStatistics};

    use super::*;

    fn duration(count: u64) -> Option<StatisticDuration> {
        Some(StatisticDuration {
            count,
            ns: count * 10,
        })
    }

    fn of(name: &str, count: u64) -> ModelStatisticsResponse {
        let stats = ModelStatistics {
            name: name.to_owned(),
            version: "1".to_owned(),
            last_inference: count * 100,
            inference_count: count,
            inference_stats: Some(InferStatistics {
                success: duration(count),
                ..InferStatistics::default()
            }),
            batch_stats: vec![InferBatchStatistics {
                batch_size: count.min(2),
                compute_infer: duration(count),
                ..InferBatchStatistics::default()
            }],
            response_stats: [(
                "0".to_owned(),
                InferResponseStatistics {
                    success: duration(count),
                    ..InferResponseStatistics::default()
                },
            )]
            .into(),
            ..ModelStatistics::default()
        };
        ModelStatisticsResponse {
            model_stats: vec![stats],
        }
    }

    #[test]
    fn statistics_of_one_model_are_summed() {
        let all = statistics(vec![of("a", 1), of("b", 5), of("a", 2), of("a", 4)]);
        assert_eq!(all.model_stats.len(), 2);
        let a = &all.model_stats[0];
        assert_eq!((a.inference_count, a.last_inference), (7, 400));
        assert_eq!(a.inference_stats.as_ref().unwrap().success, duration(7));
        assert_eq!(a.inference_stats.as_ref().unwrap().fail, None);
        assert_eq!(a.response_stats["0"].success, duration(7));
        let batches = a.batch_stats.iter();
        let batches: Vec<_> = batches
            .map(|it| (it.batch_size, it.compute_infer))
            .collect();
        assert_eq!(batches, [(1, duration(1)), (2, duration(6))]);
    }

    #[test]
    fn a_model_is_ready_where_any_server_has_it() {
        let answer = |state: &str| RepositoryIndexResponse {
            models: vec![ModelIndex {
                name: "m".to_owned(),
                version: "1".to_owned(),
                state: state.to_owned(),
                reason: String::new(),
            }],
        };
        for states in [["READY", "UNAVAILABLE"], ["UNAVAILABLE", "READY"]] {
            let all = index(states.map(answer).to_vec());
            assert_eq!(all.models.len(), 1);
            assert_eq!(all.models[0].state, "READY");
        }
    }
}
