//! The samples of a run so far, one line of JSON for each turn of a system in a load, in
//! `samples.jsonl`. A run at the papers' size takes hours; `--resume` continues after its last
//! complete turn.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::loads::{Sample, because};
use crate::volume::Result;

/// A turn of a system.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Turn {
    pub load: String,
    /// Name of the system.
    pub system: String,
    pub round: usize,
}

#[derive(Serialize, Deserialize)]
struct Line {
    scale: f64,
    turn: Turn,
    samples: Vec<Sample>,
}

pub struct Samples {
    file: File,
    scale: f64,
    done: HashMap<Turn, Vec<Sample>>,
}

impl Samples {
    /// Starts a new file in the folder `out`, or with `resume` continues the existing one.
    ///
    /// Errors: the existing samples have another scale.
    pub fn open(out: &Path, scale: f64, resume: bool) -> Result<Samples> {
        let path = out.join("samples.jsonl");
        let shown = path.display().to_string();
        let mut done = HashMap::new();
        let mut text = String::new();
        if resume && path.exists() {
            text = fs::read_to_string(&path).map_err(because(&shown))?;
            // A killed run may have left a part of a line.
            text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
        }
        for line in text.lines() {
            let line: Line = serde_json::from_str(line).map_err(because(&shown))?;
            if line.scale != scale {
                return Err(format!("{shown} was measured at --scale {}", line.scale));
            }
            done.insert(line.turn, line.samples);
        }
        fs::write(&path, text).map_err(because(&shown))?;
        let file = OpenOptions::new().append(true).open(&path).map_err(because(&shown))?;
        Ok(Samples { file, scale, done })
    }

    /// The samples of an earlier run for this turn.
    pub fn take(&mut self, turn: &Turn) -> Option<Vec<Sample>> {
        self.done.remove(turn)
    }

    pub fn add(&mut self, turn: Turn, samples: &[Sample]) -> Result<()> {
        let line = Line { scale: self.scale, turn, samples: samples.to_vec() };
        let mut text = serde_json::to_string(&line).map_err(because("a sample"))?;
        text.push('\n');
        self.file.write_all(text.as_bytes()).map_err(because("samples.jsonl"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::Counts;

    fn turn(round: usize) -> Turn {
        Turn { load: "append".to_owned(), system: "xact".to_owned(), round }
    }

    fn sample(rate: f64) -> Sample {
        let counts = Counts { writes: 3, ..Counts::default() };
        Sample { phase: "a".to_owned(), rate, unit: "op".to_owned(), units: 2.0, latency: None, counts }
    }

    #[test]
    fn a_run_continues_after_its_last_whole_turn() {
        let out = std::env::temp_dir().join(format!("xact-bench-samples-{}", std::process::id()));
        fs::create_dir_all(&out).unwrap();
        let mut samples = Samples::open(&out, 0.5, false).unwrap();
        samples.add(turn(0), &[sample(1.0), sample(2.0)]).unwrap();
        samples.add(turn(1), &[sample(3.0)]).unwrap();
        let path = out.join("samples.jsonl");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() - 9]).unwrap();

        assert!(Samples::open(&out, 0.25, true).is_err());
        let mut samples = Samples::open(&out, 0.5, true).unwrap();
        assert!(samples.take(&turn(1)).is_none());
        let again = samples.take(&turn(0)).unwrap();
        assert_eq!((again[1].rate, again[1].counts.writes), (2.0, 3));
        samples.add(turn(1), &[sample(4.0)]).unwrap();
        drop(samples);
        assert_eq!(Samples::open(&out, 0.5, true).unwrap().take(&turn(1)).unwrap()[0].rate, 4.0);
        assert!(Samples::open(&out, 0.5, false).unwrap().take(&turn(0)).is_none());
        fs::remove_dir_all(&out).unwrap();
    }
}
