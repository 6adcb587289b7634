//! A separate process for each seed: nothing that another seed left in statics is there, a run that aborts or hangs ends
//! alone, and several run at once.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::report::Report;

/// A run that takes longer hangs: virtual time no longer passes.
const LONGEST: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Runs `seed` in a process of `program`, which is this crate's command.
pub fn run_in_process(program: &Path, seed: u64) -> Report {
    report(program, seed).unwrap_or_else(|how| Report::of_failure(how.to_string()))
}

fn report(program: &Path, seed: u64) -> std::io::Result<Report> {
    let mut process = Command::new(program);
    process.arg(format!("--only={seed}"));
    // A report is one line, which a pipe holds; what a panic prints is in it.
    let process = process.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = process.spawn()?;
    let began = Instant::now();
    let exit = loop {
        if let Some(exit) = process.try_wait()? {
            break exit;
        }
        if began.elapsed() > LONGEST {
            process.kill()?;
            break process.wait()?;
        }
        std::thread::sleep(LOOK_EVERY);
    };
    let mut line = String::new();
    if let Some(output) = &mut process.stdout {
        output.read_to_string(&mut line)?;
    }
    let ended = || format!("the process ended without a report: {exit}");
    Ok(Report::of_line(line.trim()).unwrap_or_else(|| Report::of_failure(ended())))
}
