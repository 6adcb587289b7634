//! The metrics of another maker's server: how loaded it is, and what its cache is like. Owns their names, as vLLM,
//! SGLang and trtllm-serve have them; pure.

use inflight_kserve::cache_state::{CacheShape, WorkerLoad};

/// Tokens of a waiting prompt, where the server does not say how long its prompts are.
const ASSUMED_PROMPT: f64 = 1024.0;
/// Tokens of the smallest blocks by which prompts are named: with pages of one token, a prompt of 100,000 would have as
/// many names.
const LEAST_BLOCK: u32 = 16;
/// Larger numbers of blocks are a mistake.
const MOST: f64 = (1u64 << 40) as f64;

/// What a server says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    queued: f64,
    running: f64,
    /// The share of the cache that requests hold.
    usage: f64,
    block_tokens: u32,
    blocks: u64,
    prompt_tokens: f64,
    prompts: f64,
    generated_tokens: f64,
    /// It computes every prompt anew.
    is_uncached: bool,
}

impl Figures {
    /// Reads metrics in Prometheus' text form; `None`: none of them is an engine's load.
    pub(super) fn read(text: &str) -> Option<Self> {
        let mut figures = Self::default();
        let mut is_known = false;
        let mut engines = 0.0;
        for line in text.lines() {
            let Some(sample) = Sample::read(line) else {
                continue;
            };
            let value = sample.value;
            match sample.name {
                "vllm:num_requests_waiting"
                | "sglang:num_queue_reqs"
                | "trtllm_num_requests_waiting" => {
                    figures.queued += value;
                    is_known = true;
                }
                "vllm:num_requests_running"
                | "sglang:num_running_reqs"
                | "trtllm_num_requests_running" => {
                    figures.running += value;
                    is_known = true;
                }
                "vllm:kv_cache_usage_perc"
                | "sglang:token_usage"
                | "trtllm_kv_cache_utilization" => {
                    figures.usage += value.min(1.0);
                    engines += 1.0;
                }
                "vllm:cache_config_info" => {
                    figures.add_cache(sample.label("block_size"), sample.label("num_gpu_blocks"));
                    figures.is_uncached |= sample.label("enable_prefix_caching") == Some("False");
                }
                "sglang:cache_config_info" => {
                    figures.add_cache(sample.label("page_size"), sample.label("num_pages"));
                }
                "trtllm_kv_cache_tokens_per_block" => figures.block_tokens = value as u32,
                "trtllm_kv_cache_max_blocks" => figures.blocks += value as u64,
                "vllm:request_prompt_tokens_sum" | "sglang:prompt_tokens_total" => {
                    figures.prompt_tokens += value;
                }
                "vllm:request_prompt_tokens_count" | "sglang:num_requests_total" => {
                    figures.prompts += value;
                }
                "vllm:generation_tokens_total" | "sglang:generation_tokens_total" => {
                    figures.generated_tokens += value;
                }
                _ => {}
            }
        }
        if engines > 0.0 {
            figures.usage /= engines;
        }
        is_known.then_some(figures)
    }

    fn add_cache(&mut self, block_tokens: Option<&str>, blocks: Option<&str>) {
        let number = |text: Option<&str>| text?.parse().ok();
        self.block_tokens = number(block_tokens).unwrap_or(self.block_tokens);
        let blocks: Option<u64> = blocks.and_then(|text| text.parse().ok());
        let blocks = blocks.filter(|blocks| (*blocks as f64) < MOST);
        self.blocks = self.blocks.saturating_add(blocks.unwrap_or(0));
    }

    /// Tokens of its blocks; 0: it does not say.
    pub(super) fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// Blocks of its cache; 0: it does not say.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The cache as it can be estimated from what is sent to the server.
    pub(super) fn estimated_shape(&self) -> CacheShape {
        if self.is_uncached || self.block_tokens == 0 {
            return CacheShape::default();
        }
        let together = LEAST_BLOCK.div_ceil(self.block_tokens);
        CacheShape {
            tokens_per_block: self.block_tokens.saturating_mul(together),
            device_blocks: self.blocks / u64::from(together),
            ..CacheShape::default()
        }
    }

    /// How loaded the server is. What it computed in which time it does not say.
    pub(super) fn load(&self) -> WorkerLoad {
        let prompt = match self.prompts > 0.0 {
            true => self.prompt_tokens / self.prompts,
            false => ASSUMED_PROMPT,
        };
        let used = (self.blocks as f64 * self.usage) as u64;
        WorkerLoad {
            queued_requests: self.queued as u32,
            running_requests: self.running as u32,
            queued_prompt_tokens: (self.queued * prompt) as u64,
            free_blocks: self.blocks.saturating_sub(used),
            total_blocks: self.blocks,
            generated_tokens_total: self.generated_tokens as u64,
            ..WorkerLoad::default()
        }
    }
}

/// One line.
struct Sample<'a> {
    name: &'a str,
    labels: &'a str,
    value: f64,
}

impl<'a> Sample<'a> {
    /// `None`: a comment, or no sample of a finite number that is at least 0.
    fn read(line: &'a str) -> Option<Self> {
        let end = line.find(['{', ' '])?;
        let (name, rest) = line.split_at_checked(end)?;
        if name.starts_with('#') {
            return None;
        }
        let (labels, value) = match rest.strip_prefix('{') {
            // A value has no braces.
            Some(rest) => rest.rsplit_once('}')?,
            None => ("", rest),
        };
        let value: f64 = value.split_ascii_whitespace().next()?.parse().ok()?;
        (value.is_finite() && value >= 0.0).then_some(Self {
            name,
            labels,
            value,
        })
    }

    /// A label's value, if it has no escapes, as none of those that matter has.
    fn label(&self, name: &str) -> Option<&'a str> {
        let mut rest = self.labels;
        while let Some((label, value)) = rest.split_once("=\"") {
            let end = end_of_value(value)?;
            let (value, behind) = value.split_at_checked(end)?;
            if label.trim_start_matches([',', ' ']) == name {
                return Some(value);
            }
            rest = behind.strip_prefix('"')?;
        }
        None
    }
}

/// Where the quote is that ends a label's value.
fn end_of_value(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_makers_names_are_known() {
        let vllm = r#"# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a} \"b\""} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:cache_config_info{block_size="16",cache_dtype="a\"b",enable_prefix_caching="True",engine="0",num_gpu_blocks="573",num_gpu_blocks_override="None"} 1.0
vllm:request_prompt_tokens_sum{engine="0",model_name="m"} 3000.0
vllm:request_prompt_tokens_count{engine="0",model_name="m"} 10.0
vllm:generation_tokens_total{engine="0",model_name="m"} 1.5e+06
"#;
        let sglang = r#"sglang:num_running_reqs{model_name="m"} 4
sglang:num_queue_reqs{model_name="m"} 2 1700000000000
sglang:token_usage{model_name="m"} 0.5
sglang:cache_config_info{num_pages="9168",page_size="1"} 1.0
"#;
        let trtllm = r#"trtllm_num_requests_running{model_name="m"} 4.0
trtllm_num_requests_waiting{model_name="m"} 2.0
trtllm_kv_cache_utilization{model_name="m"} 0.5
trtllm_kv_cache_tokens_per_block{model_name="m"} 32.0
trtllm_kv_cache_max_blocks{model_name="m"} 573.0
"#;
        // Queued and running requests, queued tokens, free blocks and all, and tokens of a block and their number as
        // they are estimated.
        for (text, expected) in [
            (vllm, (2, 4, 600, 287, 573, 16, 573)),
            (sglang, (2, 4, 2048, 4584, 9168, 16, 573)),
            (trtllm, (2, 4, 2048, 287, 573, 32, 573)),
        ] {
            let figures = Figures::read(text).unwrap();
            let (load, shape) = (figures.load(), figures.estimated_shape());
            let found = (
                load.queued_requests,
                load.running_requests,
                load.queued_prompt_tokens,
                load.free_blocks,
                load.total_blocks,
                shape.tokens_per_block,
                shape.device_blocks,
            );
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn a_server_without_reuse_is_not_estimated() {
        let text = r#"vllm:num_requests_running 0
vllm:cache_config_info{block_size="16",enable_prefix_caching="False",num_gpu_blocks="573"} 1"#;
        let figures = Figures::read(text).unwrap();
        assert_eq!(figures.estimated_shape(), CacheShape::default());
        assert_eq!(figures.load().total_blocks, 573);
    }

    #[test]
    fn other_text_says_nothing_and_odd_numbers_are_not_taken() {
        for text in [
            "",
            "[]",
            "{\"a\": 1}",
            "process_cpu_seconds_total 1.0",
            "vllm:num_requests_running{",
        ] {
            assert_eq!(Figures::read(text), None, "{text}");
        }
        let odd = "vllm:num_requests_waiting NaN\nvllm:num_requests_waiting -1\nvllm:num_requests_waiting{a=\"b} +Inf\n\
            vllm:num_requests_running 1e300\nvllm:cache_config_info{block_size=\"x\",num_gpu_blocks=\"99999999999999\"} 1\n\
            vllm:cache_config_info{block_size=\"16} 1";
        let figures = Figures::read(odd).unwrap();
        let load = figures.load();
        assert_eq!((load.queued_requests, load.running_requests), (0, u32::MAX));
        assert_eq!((figures.block_tokens(), figures.blocks()), (0, 0));
    }
}
