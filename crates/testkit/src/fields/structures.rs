//! Structures and their fields, and setting them.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use parking_lot::Mutex;
use xact_types::Ino;

use super::volumes::SoundVolume;
use crate::image::{Image, PAGE_BYTES};
use crate::rng::Rng;
use crate::tools::ImageFile;

/// The kinds of value: 0, all ones, the next larger number, a random one, and a plausible one,
/// which another structure of the kind has.
pub const VALUES: [&str; 5] = ["zero", "ones", "next", "random", "other"];

const ZERO: usize = 0;
const ONES: usize = 1;
const NEXT: usize = 2;
const RANDOM: usize = 3;

/// Bytes at the start of a block whose words are set, and at its end.
const HEAD_BYTES: usize = 96;
const TAIL_BYTES: usize = 16;

/// A structure on a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Structure {
    Superblock,
    Group(u32),
    /// With a name for it.
    Inode(&'static str, Ino),
    /// A block, by the kind of its contents.
    Block(&'static str, u64),
}

impl fmt::Display for Structure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Structure::Superblock => f.write_str("superblock"),
            Structure::Group(0) => f.write_str("group-first"),
            Structure::Group(_) => f.write_str("group-last"),
            Structure::Inode(name, _) => write!(f, "inode:{name}"),
            Structure::Block(name, _) => write!(f, "block:{name}"),
        }
    }
}

/// The way in which debugfs reads a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Number,
    Signed,
    Time,
    Text,
    Uuid,
    Hash,
}

#[derive(Debug)]
pub(super) struct Field {
    name: String,
    form: Form,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The bytes of a field within its structure, lowest first.
type Bytes = Vec<usize>;

/// Sets fields.
pub(super) struct Setter {
    superblock: Vec<Field>,
    group: Vec<Field>,
    inode: Vec<Field>,
    /// Words of the head of a block; and of its tail, from the end.
    block: Vec<Field>,
    /// By kind of structure and field; `None` if debugfs sets it nowhere.
    found: Mutex<HashMap<(&'static str, String), Option<Bytes>>>,
}

impl Setter {
    pub fn new(any: &SoundVolume) -> Result<Setter, String> {
        let mut file = ImageFile::default();
        file.put(&any.image).map_err(|e| e.to_string())?;
        let list = |command: &str| -> Result<Vec<Field>, String> {
            let text = debugfs(file.path(), &[format!("{command} -l")])?;
            Ok(text.lines().filter_map(field_names).flatten().collect())
        };
        let words = (0..HEAD_BYTES).step_by(4).map(|at| format!("+{at}"));
        let tail = (1..=TAIL_BYTES / 4).rev().map(|word| format!("-{}", 4 * word));
        Ok(Setter {
            superblock: list("set_super_value")?,
            group: list("set_block_group")?,
            inode: list("set_inode_field")?,
            block: words.chain(tail).map(|name| Field { name, form: Form::Number }).collect(),
            found: Mutex::default(),
        })
    }

    pub fn list(&self, structure: &Structure) -> &[Field] {
        match structure {
            Structure::Superblock => &self.superblock,
            Structure::Group(_) => &self.group,
            Structure::Inode(..) => &self.inode,
            Structure::Block(..) => &self.block,
        }
    }

    /// Sets a field of a structure in the file, which has the volume. False if nothing changes.
    pub fn set(
        &self,
        volumes: &[SoundVolume],
        volume: &SoundVolume,
        structure: &Structure,
        (field, value): (usize, usize),
        seed: u64,
        file: &mut ImageFile,
    ) -> Result<bool, String> {
        let field = &self.list(structure)[field];
        if let Structure::Block(_, block) = structure {
            return set_word(volume, *block, field, value, seed, file);
        }
        if matches!(field.form, Form::Text | Form::Uuid | Form::Hash) {
            let set = self.request(structure, field, &odd_value(field.form, value));
            return Ok(debugfs(file.path(), &set).is_ok());
        }
        let Some(bytes) = self.bytes_of(volume, structure, field, file)? else { return Ok(false) };
        let read = |volume: &SoundVolume, structure: &Structure| {
            let at = volume.place(structure);
            let byte = |&offset: &usize| {
                let mut byte = [0];
                volume.image.read(&mut byte, at + offset as u64);
                byte[0]
            };
            bytes.iter().rev().fold(0u64, |number, offset| number << 8 | u64::from(byte(offset)))
        };
        let max = u64::MAX >> (64 - 8 * bytes.len());
        let now = read(volume, structure);
        let others = || {
            let same_volume = volume.structures.iter().map(|other| (volume, other));
            let elsewhere = volumes.iter().flat_map(|v| v.structures.iter().map(move |other| (v, other)));
            same_volume
                .chain(elsewhere.filter(|_| matches!(structure, Structure::Superblock)))
                .filter(|(_, other)| std::mem::discriminant(*other) == std::mem::discriminant(structure))
                .map(|(volume, other)| read(volume, other))
                .find(|&number| number != now)
        };
        let number = chosen(value, now, max, seed, others);
        if number == now {
            return Ok(false);
        }
        let text = match field.form {
            Form::Signed if number == max => "-1".to_owned(),
            Form::Time => format!("@{number}"),
            _ => number.to_string(),
        };
        Ok(debugfs(file.path(), &self.request(structure, field, &text)).is_ok())
    }

    fn request(&self, structure: &Structure, field: &Field, value: &str) -> Vec<String> {
        match structure {
            Structure::Superblock => vec![format!("set_super_value {field} {value}")],
            Structure::Group(number) => {
                let mut requests = vec![format!("set_block_group {number} {field} {value}")];
                if field.name != "checksum" {
                    requests.push(format!("set_block_group {number} checksum calc"));
                }
                requests
            }
            Structure::Inode(_, ino) => vec![format!("set_inode_field <{}> {field} {value}", ino.0)],
            Structure::Block(..) => unreachable!("words of blocks are set without debugfs"),
        }
    }

    /// The bytes that change when the field becomes 0 or all ones.
    fn bytes_of(
        &self,
        volume: &SoundVolume,
        structure: &Structure,
        field: &Field,
        file: &mut ImageFile,
    ) -> Result<Option<Bytes>, String> {
        let (class, sums): (_, &[usize]) = match structure {
            Structure::Superblock => ("superblock", &[0x3FC, 0x3FD, 0x3FE, 0x3FF]),
            Structure::Group(_) => ("group", &[0x1E, 0x1F]),
            Structure::Inode(..) => ("inode", &[0x7C, 0x7D, 0x82, 0x83]),
            Structure::Block(..) => unreachable!("words of blocks are set without debugfs"),
        };
        let key = (class, field.name.clone());
        if let Some(Some(known)) = self.found.lock().get(&key) {
            return Ok(Some(known.clone()));
        }
        let length = if class == "group" { usize::from(volume.sb.desc_size()) } else { 1024 };
        let length = if class == "inode" { usize::from(volume.sb.inode_size()) } else { length };
        let at = volume.place(structure);
        let mut put = |text: &str| -> Result<Result<Vec<u8>, String>, String> {
            let io = |e: std::io::Error| e.to_string();
            let refused = debugfs(file.path(), &self.request(structure, field, text)).err();
            let image = file.take().map_err(io)?;
            file.put(&volume.image).map_err(io)?;
            Ok(match refused {
                Some(why) => Err(why),
                None => {
                    let mut bytes = vec![0; length];
                    image.read(&mut bytes, at);
                    Ok(bytes)
                }
            })
        };
        let sign = if field.form == Form::Time { "@" } else { "" };
        let mut changed = Vec::new();
        let mut before = vec![0; length];
        volume.image.read(&mut before, at);
        let ones = if field.form == Form::Signed { "-1" } else { "0xffffffffffffffff" };
        let mut ones = put(&format!("{sign}{ones}"))?;
        if let Err(why) = &ones
            && let Some(max) = why.split("maximum ").nth(1)
        {
            ones = put(&format!("{sign}{}", max.trim_end_matches(['.', ' ', '\n', '|'])))?;
        }
        for bytes in [ones, put(&format!("{sign}0"))?].into_iter().flatten() {
            changed.extend((0..length).filter(|&offset| bytes[offset] != before[offset]));
        }
        changed.sort_unstable();
        changed.dedup();
        let of_time_of_writing = |offset: usize| class == "superblock" && (0x30..0x34).contains(&offset);
        changed.retain(|offset| field.name.starts_with("checksum") || !sums.contains(offset));
        changed.retain(|&offset| field.name == "wtime" || !of_time_of_writing(offset));
        let found = (1..=8).contains(&changed.len()).then_some(changed);
        self.found.lock().insert(key, found.clone());
        Ok(found)
    }
}

fn chosen(value: usize, now: u64, max: u64, seed: u64, other: impl FnOnce() -> Option<u64>) -> u64 {
    match value {
        ZERO => 0,
        ONES => max,
        NEXT => now.wrapping_add(1) & max,
        RANDOM => Rng::of(&[seed]).next() & max,
        _ => other().unwrap_or(now ^ (1 << (seed % u64::from(64 - max.leading_zeros())))),
    }
}

/// Sets a word of a block, and corrects the block's checksum.
fn set_word(
    volume: &SoundVolume,
    block: u64,
    field: &Field,
    value: usize,
    seed: u64,
    file: &mut ImageFile,
) -> Result<bool, String> {
    let size = u64::from(volume.sb.block_size());
    let offset: i64 = field.name.parse().expect("a field of a block is an offset");
    let at = block * size + if offset < 0 { size - offset.unsigned_abs() } else { offset as u64 };
    let word = |at: u64| {
        let mut bytes = [0; 4];
        volume.image.read(&mut bytes, at);
        u64::from(u32::from_le_bytes(bytes))
    };
    let now = word(at);
    let number = chosen(value, now, u32::MAX.into(), seed, || Some(word(at ^ 4)).filter(|&n| n != now));
    let mut image: Image = volume.image.clone();
    image.write(&(number as u32).to_le_bytes(), at);
    volume.map.reseal(&mut image, block);
    if image.changed_since(&volume.image).all(|(offset, bytes)| {
        let mut before = [0; PAGE_BYTES];
        volume.image.read(&mut before[..bytes.len()], offset);
        before[..bytes.len()] == *bytes
    }) {
        return Ok(false);
    }
    file.put(&image).map_err(|e| format!("writing the image: {e}"))?;
    Ok(true)
}

fn odd_value(form: Form, value: usize) -> String {
    let of = |values: [&str; 5]| values[value].to_owned();
    match form {
        Form::Text => of(["\"\"", &"x".repeat(300), "a", "Zm9yIHRlc3Rz", "lost+found"]),
        Form::Uuid => of([
            "clear",
            "ffffffff-ffff-ffff-ffff-ffffffffffff",
            "0a1b2c3d-4e5f-4071-8293-a4b5c6d7e8fa",
            "5f3c1a90-7be2-4d46-9c03-b1e88d0f2a67",
            "6d0b2a4a-6f1d-4c0b-8f53-1a2b3c4d5e6f",
        ]),
        _ => of(["legacy", "tea_unsigned", "tea", "half_md4_unsigned", "legacy_unsigned"]),
    }
}

/// The fields that a line of a list names: `blocks_count[_hi|_lo]  unsigned integer`.
fn field_names(line: &str) -> Option<Vec<Field>> {
    let (name, kind) = line.trim().split_once(char::is_whitespace)?;
    let form = match kind.trim() {
        "unsigned integer" | "unknown" | "unsigned integer OR \"calc\"" => Form::Number,
        "integer" => Form::Signed,
        "date/time" => Form::Time,
        "string" => Form::Text,
        "UUID" => Form::Uuid,
        "hash algorithm" => Form::Hash,
        _ => return None,
    };
    let names = match name.split_once('[') {
        None => vec![name.to_owned()],
        Some((name, "_hi|_lo]")) => vec![name.to_owned(), format!("{name}_hi")],
        Some((name, index)) => {
            let index = index.trim_end_matches(']');
            match index.parse::<u32>() {
                Ok(count) => [0, count - 1].map(|i| format!("{name}[{i}]")).to_vec(),
                // The map from one block to another is not a field.
                Err(_) if index.is_empty() => return None,
                Err(_) => vec![format!("{name}[{index}]")],
            }
        }
    };
    Some(names.into_iter().map(|name| Field { name, form }).collect())
}

/// Runs requests of debugfs for writing, and returns its output. Descriptors of groups that are not
/// there would make the file larger; it keeps its size. Errors: what debugfs complains about.
pub(super) fn debugfs(path: &Path, requests: &[String]) -> Result<String, String> {
    let failed = |e: std::io::Error| format!("cannot run debugfs: {e} (install e2fsprogs)");
    let size = std::fs::metadata(path).map_err(failed)?.len();
    let mut child = Command::new("debugfs")
        .args(["-w", "-f", "-"])
        .arg(path)
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut input = child.stdin.take().expect("a pipe");
    // A program that has ended reads nothing, and has said why.
    let _ = input.write_all((requests.join("\n") + "\n").as_bytes());
    drop(input);
    let output = child.wait_with_output().map_err(failed)?;
    File::options().write(true).open(path).and_then(|file| file.set_len(size)).map_err(failed)?;
    let complaints = String::from_utf8_lossy(&output.stderr);
    let complaints: Vec<&str> = complaints.lines().filter(|line| !line.starts_with("debugfs 1.")).collect();
    match complaints.is_empty() && output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(complaints.join(" | ")),
    }
}
