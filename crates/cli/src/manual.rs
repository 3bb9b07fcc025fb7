//! The man pages: what clap knows of a command, and a synopsis with values, the settings from their
//! table, examples, and related pages.

use std::fmt::Write;

use clap::{Arg, Command, CommandFactory};
use clap_mangen::Man;
use xact::settings::Setting;

use crate::{helpers, settings_args};

/// A command line and its meaning, by the name of the page.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        "xact",
        &[
            ("xact mkfs disk.img --size 1G", "Make a volume in a new image file"),
            ("xact mount disk.img mnt", "Mount it"),
            ("xact run --at mnt -- make install", "Run a command in a transaction"),
            ("xact umount mnt", "Unmount the volume"),
        ],
    ),
    (
        "xact-mkfs",
        &[
            ("xact mkfs disk.img --size 1G --label data", "Make a volume with a name"),
            (
                "xact mkfs disk.img --size 1G --engine generations --pool-size 64M",
                "Make a volume for snapshots",
            ),
        ],
    ),
    (
        "xact-mount",
        &[
            ("xact mount -o relatime,discard disk.img mnt", "Mount with options"),
            ("xact mount --commit-interval 500ms --cache-size 1G disk.img mnt", "Commit twice a second"),
            (
                "xact mount --snapshot-every 1h --snapshot-retain hourly=24,daily=7 disk.img mnt",
                "Make a snapshot every hour, and retain those of a day and a week",
            ),
        ],
    ),
    ("xact-umount", &[("xact umount mnt", "Unmount the volume at mnt")]),
    ("xact-sync", &[("xact sync mnt", "Make all changes on the volume at mnt durable")]),
    (
        "xact-run",
        &[
            (
                "xact run -- make install",
                "Install to the volume of the current folder, completely or not at all",
            ),
            ("xact run --at mnt --ask -- ./upgrade.sh", "Show the changes and ask before the commit"),
            (
                "xact run --at mnt --retry 5 -- ./count.sh mnt/counter",
                "Run the command again after conflicts",
            ),
            (
                "xact run --at mnt --snapshot=before-upgrade -- ./upgrade.sh",
                "Make a snapshot before the commit",
            ),
        ],
    ),
    (
        "xact-tx",
        &[
            ("xact run --at mnt --leave-open -- ./upgrade.sh", "Leave a transaction open"),
            ("xact tx diff 3 --at mnt", "Show its changes"),
            ("xact tx commit 3 --at mnt", "Commit it"),
        ],
    ),
    (
        "xact-tx-begin",
        &[("xact tx begin --at mnt --timeout 12h --persist", "Begin a transaction that survives unmounts")],
    ),
    ("xact-tx-list", &[("xact tx list --at mnt --json", "List open transactions for a program")]),
    ("xact-tx-status", &[("xact tx status 3 --at mnt", "Show the status of transaction 3")]),
    (
        "xact-tx-diff",
        &[
            ("xact tx diff 3 --at mnt --patch", "Show the changed lines of transaction 3"),
            ("xact tx diff 3 --at mnt /etc", "Show the changes below /etc"),
        ],
    ),
    (
        "xact-tx-commit",
        &[("xact tx commit 3 --at mnt --only /etc/hosts", "Commit one file, and leave the transaction open")],
    ),
    ("xact-tx-abort", &[("xact tx abort 3 --at mnt", "Discard the changes of transaction 3")]),
    ("xact-mode", &[("xact mode get mnt", "Show the modes of the volume at mnt")]),
    ("xact-mode-clear", &[("xact mode clear --file mnt/table.db", "Write a file as the volume says")]),
    ("xact-mode-get", &[("xact mode get disk.img --json", "Show the modes of a volume for a program")]),
    (
        "xact-mode-set",
        &[
            ("xact mode set disk.img data=journal", "Write all data to the journal"),
            ("xact mode set mnt data=default", "Return to the default at the next mount"),
            ("xact mode set --file mnt/table.db ordered", "Keep the data of one file out of the journal"),
            ("xact mode set --file mnt/logs --inherit data", "Write new files in a folder to the journal"),
        ],
    ),
    ("xact-list", &[("xact list --json", "List the mounted volumes for a program")]),
    (
        "xact-stat",
        &[
            ("xact stat mnt --watch=5s", "Show the activity of every five seconds"),
            (
                "xact stat --prometheus --output /var/lib/prometheus/node-exporter/xact.prom",
                "Write metrics of all volumes for node_exporter",
            ),
        ],
    ),
    ("xact-info", &[("xact info disk.img", "Show the superblock of a volume")]),
    ("xact-journal", &[("xact journal disk.img --blocks", "List the journal with each block")]),
    ("xact-recover", &[("xact recover disk.img", "Recover a volume after a crash")]),
    (
        "xact-check",
        &[("xact check disk.img --progress=json", "Check a volume, and report progress to a program")],
    ),
    (
        "xact-snapshot",
        &[
            ("xact snapshot create mnt monday", "Make a snapshot"),
            ("xact snapshot diff mnt monday", "Show the changes since then"),
            ("xact snapshot restore mnt monday /etc", "Restore a folder"),
        ],
    ),
    (
        "xact-snapshot-create",
        &[
            ("xact snapshot create mnt monday", "Make a snapshot of the volume"),
            ("xact snapshot create mnt settings /etc /home/me/.config", "Make a snapshot of two folders"),
        ],
    ),
    ("xact-snapshot-list", &[("xact snapshot list disk.img", "List the snapshots of an unmounted volume")]),
    ("xact-snapshot-restore", &[("xact snapshot restore mnt monday /etc/hosts", "Restore one file")]),
    ("xact-snapshot-delete", &[("xact snapshot delete mnt monday", "Delete a snapshot")]),
    (
        "xact-snapshot-prune",
        &[(
            "xact snapshot prune mnt --retain last=3,daily=7,within=12h --dry-run",
            "Show which snapshots would be deleted",
        )],
    ),
    (
        "xact-snapshot-diff",
        &[("xact snapshot diff mnt monday tuesday --path /etc", "Compare a folder in two snapshots")],
    ),
    (
        "xact-snapshot-export",
        &[("xact snapshot export mnt monday.img --name monday", "Write a snapshot to an ext4 image")],
    ),
    ("xact-snapshot-image", &[("xact snapshot image mnt monday", "Print the path of a snapshot's image")]),
    ("xact-convert", &[("xact convert disk.img --to generations", "Convert an ext4 volume in place")]),
    ("xact-completions", &[("xact completions bash", "Print the script for bash")]),
    ("mkfs.xact", &[("mkfs -t xact -L data /dev/sdb1", "Make a volume on a device")]),
    (
        "fsck.xact",
        &[
            ("fsck.xact -p /dev/sdb1", "Do what the start of the system does"),
            ("fsck.xact -n disk.img", "Check an image file, and change nothing"),
        ],
    ),
    ("xact-man", &[("xact man /usr/local/share/man/man1", "Write the man pages")]),
];

/// Pages of other programs, by the name of the page.
const SEE_ALSO: &[(&str, &[&str])] = &[
    ("xact", &["libxact(3)", "ext4(5)", "mount(8)"]),
    ("xact-mkfs", &["mke2fs(8)"]),
    ("xact-mount", &["mount(8)", "fstab(5)", "systemd.mount(5)", "fuse(4)", "fstrim(8)"]),
    ("xact-umount", &["umount(8)"]),
    ("mkfs.xact", &["xact-mkfs(1)", "mkfs(8)", "mke2fs(8)"]),
    ("fsck.xact", &["xact-check(1)", "xact-recover(1)", "fsck(8)", "e2fsck(8)"]),
    ("xact-sync", &["sync(1)", "fsync(2)"]),
    ("xact-run", &["libxact(3)"]),
    ("xact-mode", &["ext4(5)", "tune2fs(8)"]),
    ("xact-mode-set", &["ext4(5)", "tune2fs(8)"]),
    ("xact-list", &["findmnt(8)"]),
    ("xact-info", &["dumpe2fs(8)"]),
    ("xact-journal", &["debugfs(8)"]),
    ("xact-recover", &["e2fsck(8)"]),
    ("xact-check", &["e2fsck(8)"]),
    ("xact-snapshot-image", &["e2fsck(8)", "mount(8)"]),
    ("xact-snapshot-export", &["e2fsck(8)"]),
    ("xact-tx-diff", &["git-apply(1)", "patch(1)"]),
];

/// The names and contents of all pages of a command and its subcommands.
pub fn pages(command: Command) -> Vec<(String, String)> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut found = Vec::new();
    collect(&command, None, &mut found);
    found
}

/// The pages of the helpers of mkfs(8), fsck(8), mount(8) and umount(8), in section 8.
pub fn helper_pages() -> Vec<(String, String)> {
    let own = [helpers::MkfsOfSize::definition(), helpers::Fsck::command()];
    let own = own.into_iter().map(|mut command| {
        command.build();
        (format!("{}.8", command.get_name()), page(&command, None))
    });
    let others = [("mount.xact", "xact-mount"), ("umount.xact", "xact-umount")];
    let others = others.map(|(name, page)| (format!("{name}.8"), format!(".so man1/{page}.1\n")));
    own.chain(others).collect()
}

fn collect(command: &Command, parent: Option<&Command>, found: &mut Vec<(String, String)>) {
    let subcommands = || command.get_subcommands().filter(|sub| !sub.is_hide_set());
    found.push((format!("{}.1", page_name(command)), page(command, parent)));
    subcommands().for_each(|sub| collect(sub, Some(command), found));
}

fn page_name(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

fn page(command: &Command, parent: Option<&Command>) -> String {
    let name = page_name(command);
    let mut command = command.clone();
    let mut settings = String::new();
    if name == "xact-mount" {
        command = command.mut_arg("options", |option| {
            option.long_help("Mount options, separated by commas. They are listed under MOUNT OPTIONS.")
        });
        settings = section_of("MOUNT OPTIONS", settings_args::options(), settings_args::synopsis);
    } else if name.starts_with("xact-mode") {
        if name == "xact-mode" {
            command = command.long_about(settings_args::modes_introduction());
        }
        settings = section_of("MODES", settings_args::modes(), |setting| setting.name.into());
    }
    let synopsis = synopsis(&command);
    let section = if name.contains('.') { "8" } else { "1" };
    let man = Man::new(command.clone()).manual("xact manual").section(section);
    let mut bytes = Vec::new();
    man.render_title(&mut bytes)
        .and_then(|()| man.render_name_section(&mut bytes))
        .and_then(|()| {
            bytes.extend(synopsis.as_bytes());
            man.render_description_section(&mut bytes)
        })
        .and_then(|()| man.render_options_section(&mut bytes))
        .and_then(|()| {
            bytes.extend(settings.as_bytes());
            if command.get_subcommands().next().is_some() {
                man.render_subcommands_section(&mut bytes)?;
            }
            if command.get_after_long_help().is_some() {
                man.render_extra_section(&mut bytes)?;
            }
            Ok(())
        })
        .expect("writing into memory");
    let mut text = String::from_utf8(bytes).expect("a page is text");
    text += &examples(&name);
    text += &see_also(&name, &command, parent);
    text
}

/// Text for roff: backslashes, and dashes that are to be copied as such.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}

/// `xact mkfs [--size SIZE] ... IMG`.
fn synopsis(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let mut text = format!(".SH SYNOPSIS\n\\fB{}\\fR", escaped(name));
    let hidden = |arg: &&Arg| arg.is_hide_set() || matches!(arg.get_id().as_str(), "help" | "version");
    for arg in command.get_arguments().filter(|arg| !hidden(arg) && !arg.is_positional()) {
        let option = match (arg.get_long(), arg.get_short()) {
            (Some(long), _) => format!("--{long}"),
            (None, Some(short)) => format!("-{short}"),
            (None, None) => continue,
        };
        let mut option = format!("\\fB{}\\fR", escaped(&option));
        if arg.get_action().takes_values() {
            let is_optional = arg.get_num_args().is_some_and(|range| range.min_values() == 0);
            let value = format!("\\fI{}\\fR", escaped(&values(arg)));
            option += &match (is_optional, arg.is_require_equals_set()) {
                (true, true) => format!("[={value}]"),
                (true, false) => format!(" [{value}]"),
                (false, _) => format!(" {value}"),
            };
        }
        let _ = match arg.is_required_set() {
            true => write!(text, " {option}"),
            false => write!(text, " [{option}]"),
        };
    }
    for arg in command.get_positionals() {
        let many = if arg.get_num_args().is_some_and(|range| range.max_values() > 1) { "..." } else { "" };
        let value = format!("\\fI{}\\fR{many}", escaped(&values(arg)));
        let _ = match arg.is_required_set() {
            true => write!(text, " {value}"),
            false => write!(text, " [{value}]"),
        };
    }
    if command.has_subcommands() {
        text += " \\fICOMMAND\\fR ...";
    }
    text + "\n"
}

/// The possible values of an argument, or its placeholder.
fn values(arg: &Arg) -> String {
    let possible = arg.get_possible_values();
    let names: Vec<&str> = possible.iter().map(|value| value.get_name()).collect();
    match arg.get_value_names() {
        Some([name, ..]) if names.is_empty() || arg.is_positional() => name.to_string(),
        _ if !names.is_empty() => names.join("|"),
        _ => arg.get_id().as_str().to_uppercase(),
    }
}

/// A section with a list of settings.
fn section_of(
    title: &str,
    all: impl Iterator<Item = &'static Setting>,
    head: impl Fn(&Setting) -> String,
) -> String {
    let mut text = format!(".SH \"{title}\"\n");
    for setting in all {
        let meaning = escaped(&settings_args::meaning(setting));
        let _ = writeln!(text, ".TP\n\\fB{}\\fR\n{meaning}", escaped(&head(setting)));
        if !setting.notes.is_empty() {
            let _ = writeln!(text, "{}", escaped(setting.notes));
        }
        if setting.words().is_empty() {
            continue;
        }
        text += ".RS\n";
        for word in setting.words() {
            let help = escaped(&settings_args::lower(word.help));
            let _ = writeln!(text, ".TP\n\\fI{}\\fR\n{help}.", escaped(word.word));
        }
        text += ".RE\n";
    }
    text
}

fn lookup<T>(table: &'static [(&str, &'static [T])], name: &str) -> &'static [T] {
    table.iter().find(|(page, _)| *page == name).map_or(&[], |(_, rows)| rows)
}

fn examples(name: &str) -> String {
    let mut text = ".SH EXAMPLES\n".to_owned();
    for (line, meaning) in lookup(EXAMPLES, name) {
        let _ = writeln!(text, ".TP\n{}:\n\\fB{}\\fR", escaped(meaning), escaped(line));
    }
    text
}

/// The parent page, the pages below, and those of other programs.
fn see_also(name: &str, command: &Command, parent: Option<&Command>) -> String {
    let below = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let above = parent.into_iter().flat_map(|parent| {
        let siblings = parent.get_subcommands().filter(|_| parent.get_name() != "xact");
        std::iter::once(parent).chain(siblings)
    });
    let pages = above.chain(below).map(page_name).filter(|page| page != name);
    let pages = pages.map(|page| format!("{page}(1)"));
    let all: Vec<String> = pages.chain(lookup(SEE_ALSO, name).iter().map(|page| page.to_string())).collect();
    let line = |page: &String| {
        let (page, section) = page.split_once('(').expect("a page has a section");
        format!(".BR {} ({section}", escaped(page))
    };
    format!(".SH \"SEE ALSO\"\n{}\n", all.iter().map(line).collect::<Vec<_>>().join(",\n"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn each_page_has_examples_that_are_valid_command_lines() {
        let pages: Vec<_> = pages(Cli::command()).into_iter().chain(helper_pages()).collect();
        for (file, text) in pages.iter().filter(|(_, text)| !text.starts_with(".so ")) {
            let (name, section) = file.rsplit_once('.').unwrap();
            assert!(text.contains(&format!(".TH {} {section}", name)), "{text}");
            assert!(!lookup(EXAMPLES, name).is_empty(), "{name} has no example");
            assert!(text.contains(".SH SYNOPSIS\n") && text.contains(".SH \"SEE ALSO\"\n.BR "), "{name}");
        }
        let names: Vec<&str> = pages.iter().map(|(file, _)| file.rsplit_once('.').unwrap().0).collect();
        assert!(names.contains(&"xact-snapshot-create"), "{names:?}");
        for (name, examples) in EXAMPLES {
            assert!(names.contains(name), "there is no page {name}");
            for (line, _) in examples.iter().filter(|(line, _)| line.starts_with("xact ")) {
                let parsed = Cli::try_parse_from(line.split(' '));
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
            }
        }
    }

    #[test]
    fn the_synopsis_has_values() {
        let pages = pages(Cli::command());
        let synopsis = |name: &str| {
            let (_, text) = pages.iter().find(|(file, _)| file == name).unwrap();
            let text = text.split(".SH ").find(|section| section.starts_with("SYNOPSIS")).unwrap();
            let line = text.lines().nth(1).unwrap();
            line.replace("\\fB", "").replace("\\fI", "").replace("\\fR", "").replace("\\-", "-")
        };
        let mkfs = synopsis("xact-mkfs.1");
        assert!(mkfs.contains("xact mkfs ") && mkfs.contains("[--size SIZE]"), "{mkfs}");
        assert!(mkfs.contains("[--engine journal|generations|none]") && mkfs.ends_with(" IMG"), "{mkfs}");
        let convert = synopsis("xact-convert.1");
        assert!(convert.contains(" --to generations|ext4 "), "{convert}");
        assert!(synopsis("xact-run.1").contains("[--snapshot[=NAME]]"));
        assert!(synopsis("xact-tx.1").ends_with(" COMMAND ..."));
    }
}
