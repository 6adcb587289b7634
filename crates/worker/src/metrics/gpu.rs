//! The GPUs that this process may use, in Triton's families. Owns which those are and what NVML says of them;
//! knows nothing of the executor.

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::page::Page;

/// The name without a version belongs to a package for developers.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// Which GPUs a process may use, as `CUDA_VISIBLE_DEVICES` has it.
#[derive(Clone, Debug, PartialEq)]
enum Visible {
    All,
    These(Vec<Name>),
}

/// A GPU as `CUDA_VISIBLE_DEVICES` names it.
#[derive(Clone, Debug, PartialEq)]
enum Name {
    /// In NVML's order; CUDA's is another where GPUs of different kinds are mixed and `CUDA_DEVICE_ORDER` is not
    /// `PCI_BUS_ID`.
    Index(u32),
    /// Of a GPU, or the beginning of it, or of a MIG slice.
    Uuid(String),
}

impl Visible {
    /// CUDA reads the list up to the first entry that names nothing.
    fn parse(variable: Option<&str>) -> Self {
        let Some(list) = variable else {
            return Self::All;
        };
        let names = list.split(',').map(str::trim).map_while(|entry| {
            if entry.starts_with("GPU-") || entry.starts_with("MIG-") {
                return Some(Name::Uuid(entry.to_owned()));
            }
            entry.parse().ok().map(Name::Index)
        });
        Self::These(names.collect())
    }
}

/// What is known of one GPU; `None`: it does not say, as a MIG slice of its power.
#[derive(Clone, Debug, Default, PartialEq)]
struct Figures {
    uuid: String,
    power_watts: Option<f64>,
    power_limit_watts: Option<f64>,
    energy_joules: Option<f64>,
    utilization: Option<f64>,
    memory: Option<(f64, f64)>,
}

/// The GPUs; none where there is no driver.
#[derive(Debug)]
pub(super) struct Gpus {
    nvml: Option<Nvml>,
    visible: Visible,
    /// What each had used before this process began, by UUID.
    begun: Vec<(String, f64)>,
}

impl Gpus {
    /// Opens the driver's library, if there is one. Takes a moment; may block.
    pub(super) fn open() -> Self {
        let nvml = Nvml::builder().lib_path(LIBRARY.as_ref()).init();
        if let Err(error) = &nvml {
            tracing::debug!(%error, "GPU metrics are not available");
        }
        let variable = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let mut gpus = Self {
            nvml: nvml.ok(),
            visible: Visible::parse(variable.as_deref()),
            begun: Vec::new(),
        };
        let energy = |gpu: Figures| Some((gpu.uuid, gpu.energy_joules?));
        gpus.begun = gpus.read().into_iter().filter_map(energy).collect();
        gpus
    }

    /// Adds `nv_gpu_*` and `nv_energy_consumption`. Asks the driver, so it may block.
    pub(super) fn write(&self, page: &mut Page) {
        let mut gpus = self.read();
        for gpu in &mut gpus {
            let begun = self.begun.iter().find(|(uuid, _)| *uuid == gpu.uuid);
            if let (Some(now), Some((_, begun))) = (&mut gpu.energy_joules, begun) {
                *now -= begun;
            }
        }
        write(page, &gpus);
    }

    fn read(&self) -> Vec<Figures> {
        let Some(nvml) = &self.nvml else {
            return Vec::new();
        };
        let all = (0..nvml.device_count().unwrap_or(0)).map(Name::Index);
        let names = match &self.visible {
            Visible::All => all.collect(),
            Visible::These(names) => names.clone(),
        };
        let figures = names.iter().map(|name| figures(nvml, name));
        figures.filter_map(Result::ok).collect()
    }
}

fn figures(nvml: &Nvml, name: &Name) -> Result<Figures, NvmlError> {
    let device = match name {
        Name::Index(index) => nvml.device_by_index(*index)?,
        Name::Uuid(uuid) => match nvml.device_by_uuid(uuid.as_str()) {
            Ok(device) => device,
            // CUDA takes a beginning that is unique.
            Err(_) => (0..nvml.device_count()?)
                .filter_map(|index| nvml.device_by_index(index).ok())
                .find(|device| device.uuid().is_ok_and(|whole| whole.starts_with(uuid)))
                .ok_or(NvmlError::NotFound)?,
        },
    };
    let watts = |milliwatts: Result<u32, NvmlError>| Some(f64::from(milliwatts.ok()?) / 1e3);
    let energy = device.total_energy_consumption().ok();
    let memory = device.memory_info().ok();
    Ok(Figures {
        uuid: device.uuid()?,
        power_watts: watts(device.power_usage()),
        power_limit_watts: watts(device.enforced_power_limit()),
        energy_joules: energy.map(|millijoules| millijoules as f64 / 1e3),
        utilization: device
            .utilization_rates()
            .ok()
            .map(|rates| f64::from(rates.gpu) / 100.0),
        memory: memory.map(|memory| (memory.total as f64, memory.used as f64)),
    })
}

fn write(page: &mut Page, gpus: &[Figures]) {
    type Figure = fn(&Figures) -> Option<f64>;
    let families: [(&str, &str, &str, Figure); 6] = [
        ("nv_gpu_power_usage", "gauge", "Power in watts", |gpu| {
            gpu.power_watts
        }),
        (
            "nv_gpu_power_limit",
            "gauge",
            "Power limit in watts",
            |gpu| gpu.power_limit_watts,
        ),
        (
            "nv_energy_consumption",
            "counter",
            "Energy in joules since the worker started",
            |gpu| gpu.energy_joules,
        ),
        (
            "nv_gpu_utilization",
            "gauge",
            "Share of time that the GPU works, 0 to 1",
            |gpu| gpu.utilization,
        ),
        (
            "nv_gpu_memory_total_bytes",
            "gauge",
            "The GPU's memory",
            |gpu| Some(gpu.memory?.0),
        ),
        (
            "nv_gpu_memory_used_bytes",
            "gauge",
            "The GPU's memory that is in use",
            |gpu| Some(gpu.memory?.1),
        ),
    ];
    for (name, kind, help, figure) in families {
        let samples = gpus.iter().filter_map(|gpu| Some((gpu, figure(gpu)?)));
        for (place, (gpu, value)) in samples.enumerate() {
            if place == 0 {
                page.family(name, kind, help);
            }
            page.sample(name, &[("gpu_uuid", &gpu.uuid)], value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_gpus_are_those_that_cuda_would_take() {
        let these = |names: &[Name]| Visible::These(names.to_vec());
        let uuid = |text: &str| Name::Uuid(text.to_owned());
        for (variable, expected) in [
            (None, Visible::All),
            (Some(""), these(&[])),
            (Some("-1"), these(&[])),
            (Some("NoDevFiles"), these(&[])),
            (Some("1, 0"), these(&[Name::Index(1), Name::Index(0)])),
            (Some("0,-1,1"), these(&[Name::Index(0)])),
            (Some("GPU-8932f937"), these(&[uuid("GPU-8932f937")])),
            (
                Some("MIG-41b359d8-b721"),
                these(&[uuid("MIG-41b359d8-b721")]),
            ),
        ] {
            assert_eq!(Visible::parse(variable), expected, "{variable:?}");
        }
    }

    #[test]
    fn a_figure_that_a_gpu_does_not_say_is_absent() {
        let whole = Figures {
            uuid: "GPU-1".to_owned(),
            power_watts: Some(71.5),
            memory: Some((100.0, 25.0)),
            ..Figures::default()
        };
        let slice = Figures {
            uuid: "MIG-2".to_owned(),
            memory: Some((50.0, 5.0)),
            ..Figures::default()
        };
        let mut page = Page::default();
        write(&mut page, &[whole, slice]);
        let text = page.into_text();
        let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                r#"nv_gpu_power_usage{gpu_uuid="GPU-1"} 71.5"#,
                r#"nv_gpu_memory_total_bytes{gpu_uuid="GPU-1"} 100"#,
                r#"nv_gpu_memory_total_bytes{gpu_uuid="MIG-2"} 50"#,
                r#"nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 25"#,
                r#"nv_gpu_memory_used_bytes{gpu_uuid="MIG-2"} 5"#,
            ]
        );
        assert_eq!(text.matches("# TYPE").count(), 3);
    }

    /// Needs a GPU: without one it says so and passes.
    #[test]
    fn the_gpus_of_this_machine_say_everything() {
        let gpus = Gpus {
            visible: Visible::All,
            ..Gpus::open()
        };
        let Some(nvml) = &gpus.nvml else {
            eprintln!("skipped: {LIBRARY} is missing");
            return;
        };
        let mut page = Page::default();
        gpus.write(&mut page);
        let text = page.into_text();
        let count = nvml.device_count().unwrap() as usize;
        for name in [
            "power_usage",
            "power_limit",
            "utilization",
            "memory_total_bytes",
            "memory_used_bytes",
        ] {
            let samples = text.matches(&format!("\nnv_gpu_{name}{{")).count();
            assert_eq!(samples, count, "{name} in\n{text}");
        }
    }
}
