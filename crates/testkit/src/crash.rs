//! Crash states: the part of each pending write that a crash leaves, their text form for replay
//! lines, and the choice of states to try.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use crate::recording::Part;
use crate::rng::Rng;

/// A crash: its point in a recording, and the part that is left of each write pending there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrashState {
    pub point: usize,
    pub parts: Vec<Part>,
    /// A sector that holds noise in addition, wherever it is: the medium lost it.
    pub rotten: Option<u64>,
}

/// As text: `p12:+3-2~7f;%1;!99` is a crash at point 12 that leaves three writes, loses two, leaves
/// the sectors of mask 7f of the next, and noise in the first sector of the last; and sector 99 of
/// the device is rotten.
impl fmt::Display for CrashState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}:", self.point)?;
        let mut rest = &self.parts[..];
        while let Some(first) = rest.first() {
            let run = rest.iter().take_while(|p| *p == first).count();
            let (sign, mask) = match first {
                Part::All => ('+', None),
                Part::None => ('-', None),
                Part::Sectors(mask) => ('~', Some(mask)),
                Part::Noise(mask) => ('%', Some(mask)),
            };
            let taken = match mask {
                None if run > 1 => {
                    write!(f, "{sign}{run}")?;
                    run
                }
                None => {
                    write!(f, "{sign}")?;
                    1
                }
                Some(mask) => {
                    let words: Vec<String> = mask.iter().map(|w| format!("{w:x}")).collect();
                    write!(f, "{sign}{};", words.join("."))?;
                    1
                }
            };
            rest = &rest[taken..];
        }
        if let Some(sector) = self.rotten {
            write!(f, "!{sector}")?;
        }
        Ok(())
    }
}

impl FromStr for CrashState {
    type Err = String;

    fn from_str(text: &str) -> Result<CrashState, String> {
        let bad = || format!("invalid crash state '{text}' (expected something like p12:+3-2~7f;)");
        let (point, parts) = text.strip_prefix('p').and_then(|t| t.split_once(':')).ok_or_else(bad)?;
        let point = point.parse().map_err(|_| bad())?;
        let mut out = Vec::new();
        let (mut rest, rotten) = match parts.split_once('!') {
            Some((parts, sector)) => (parts, Some(sector.parse().map_err(|_| bad())?)),
            None => (parts, None),
        };
        while let Some(sign) = rest.chars().next() {
            rest = &rest[1..];
            match sign {
                '+' | '-' => {
                    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
                    let count: usize =
                        if digits == 0 { 1 } else { rest[..digits].parse().map_err(|_| bad())? };
                    rest = &rest[digits..];
                    let part = if sign == '+' { Part::All } else { Part::None };
                    out.extend(std::iter::repeat_n(part, count));
                }
                '~' | '%' => {
                    let (words, after) = rest.split_once(';').ok_or_else(bad)?;
                    rest = after;
                    let mask: Result<Vec<u64>, _> =
                        words.split('.').map(|w| u64::from_str_radix(w, 16)).collect();
                    let mask = mask.map_err(|_| bad())?;
                    out.push(if sign == '~' { Part::Sectors(mask) } else { Part::Noise(mask) });
                }
                _ => return Err(bad()),
            }
        }
        Ok(CrashState { point, parts: out, rotten })
    }
}

/// The effort at one point.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// With this number of pending writes or fewer, every subset is tried.
    pub exhaustive: usize,
    /// The most states at one point. If there are more, a seeded sample that keeps the edge cases.
    pub per_point: usize,
    /// Also leave noise in torn sectors.
    pub noise: bool,
}

/// The states to try while writes of `sectors[i]` sectors are pending.
pub fn choices(sectors: &[usize], effort: &Effort, rng: &mut Rng) -> Vec<Vec<Part>> {
    let n = sectors.len();
    let mut out = Chosen { limit: effort.per_point, list: Vec::new(), seen: HashSet::new() };
    let subset = |keep: &dyn Fn(usize) -> bool| -> Vec<Part> {
        (0..n).map(|i| if keep(i) { Part::All } else { Part::None }).collect()
    };
    out.add(subset(&|_| true));
    out.add(subset(&|_| false));
    // The edge cases, newest write first: each one missing, each one alone, each one torn, and all
    // prefixes. A sample of them if they are too many already.
    let mut edges: Vec<Vec<Part>> = Vec::new();
    for i in (0..n).rev() {
        edges.push(subset(&|j| j != i));
        edges.push(subset(&|j| j == i));
        edges.push(subset(&|j| j < i));
        for mask in tears(sectors[i], rng) {
            for others in [true, false] {
                let mut parts = subset(&|_| others);
                parts[i] = Part::Sectors(mask.clone());
                edges.push(parts);
            }
            if effort.noise {
                let mut parts = subset(&|_| true);
                parts[i] = Part::Noise(mask);
                edges.push(parts);
            }
        }
    }
    let exhaustive = n <= effort.exhaustive;
    let budget = if exhaustive { effort.per_point } else { effort.per_point.div_ceil(2) };
    while out.list.len() < budget && !edges.is_empty() {
        let index = if edges.len() + out.list.len() <= budget { 0 } else { rng.below(edges.len() as u64) };
        out.add(edges.swap_remove(index as usize));
    }
    if exhaustive {
        for bits in 0..1u32 << n {
            out.add(subset(&|i| bits >> i & 1 == 1));
        }
    }
    let mut tries = 2 * effort.per_point;
    while n > 0 && !out.full() && tries > 0 {
        tries -= 1;
        let odds = 1 + rng.below(4);
        out.add(
            sectors
                .iter()
                .map(|&count| match rng.below(8) {
                    0 => Part::Sectors(random_mask(count, rng)),
                    r if r <= odds => Part::None,
                    _ => Part::All,
                })
                .collect(),
        );
    }
    out.list
}

struct Chosen {
    limit: usize,
    list: Vec<Vec<Part>>,
    seen: HashSet<Vec<Part>>,
}

impl Chosen {
    fn full(&self) -> bool {
        self.list.len() >= self.limit
    }

    fn add(&mut self, parts: Vec<Part>) {
        if !self.full() && self.seen.insert(parts.clone()) {
            self.list.push(parts);
        }
    }
}

/// Ways to tear a write of `count` sectors: its beginning, its end, all but one, one, a mixture.
fn tears(count: usize, rng: &mut Rng) -> Vec<Vec<u64>> {
    if count < 2 {
        return Vec::new();
    }
    let cut = 1 + rng.below(count as u64 - 1) as usize;
    let one = rng.below(count as u64) as usize;
    let mut masks = vec![
        mask(count, |i| i == 0),
        mask(count, |i| i < cut),
        mask(count, |i| i >= cut),
        mask(count, |i| i != one),
        mask(count, |i| i + 1 < count),
    ];
    if count > 8 {
        masks.push(random_mask(count, rng));
    }
    masks.sort();
    masks.dedup();
    masks
}

fn mask(count: usize, keep: impl Fn(usize) -> bool) -> Vec<u64> {
    let mut words = vec![0u64; count.div_ceil(64)];
    for i in (0..count).filter(|&i| keep(i)) {
        words[i / 64] |= 1 << (i % 64);
    }
    words
}

/// Sectors kept in runs of 1, 2 or 8, as blocks of a journal write get lost.
fn random_mask(count: usize, rng: &mut Rng) -> Vec<u64> {
    let run = *rng.pick(&[1usize, 2, 8]);
    let bits: Vec<bool> = (0..count.div_ceil(run)).map(|_| rng.one_in(2)).collect();
    mask(count, |i| bits[i / run])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips() {
        let state = CrashState {
            point: 12,
            parts: vec![
                Part::All,
                Part::All,
                Part::None,
                Part::Sectors(vec![0x7f, 1]),
                Part::Noise(vec![1]),
                Part::All,
            ],
            rotten: Some(99),
        };
        assert_eq!(state.to_string(), "p12:+2-~7f.1;%1;+!99");
        assert_eq!(state.to_string().parse::<CrashState>().unwrap(), state);
        assert!("p12".parse::<CrashState>().is_err());
        assert!("p1:?".parse::<CrashState>().is_err());
        assert!("p1:~zz;".parse::<CrashState>().is_err());
    }

    #[test]
    fn small_sets_are_tried_whole() {
        let effort = Effort { exhaustive: 6, per_point: 1000, noise: false };
        let all = choices(&[2, 2, 8, 1, 2, 4], &effort, &mut Rng::new(1));
        let subsets = all.iter().filter(|p| p.iter().all(|p| matches!(p, Part::All | Part::None)));
        assert_eq!(subsets.count(), 64);
        assert!(all.iter().any(|p| p.iter().any(|p| matches!(p, Part::Sectors(_)))));
    }

    #[test]
    fn large_sets_keep_to_the_limit_and_to_the_seed() {
        let effort = Effort { exhaustive: 6, per_point: 50, noise: true };
        let sectors = vec![8; 100];
        let a = choices(&sectors, &effort, &mut Rng::new(1));
        assert_eq!(a.len(), 50);
        assert_eq!(a, choices(&sectors, &effort, &mut Rng::new(1)));
        assert_ne!(a, choices(&sectors, &effort, &mut Rng::new(2)));
    }
}
