//! `xact list`: the volumes that are mounted on this machine.

use serde::Serialize;
use xact::text::printable;

use crate::args::List;
use crate::exit::Result;
use crate::mounts;
use crate::output::{print, print_json};
use crate::values::size_text;
use crate::volumes::{self, Facts, Found, State};

/// A mounted volume, as it is printed. What the caller cannot learn is null.
#[derive(Debug, Serialize)]
struct Row {
    mount: String,
    image: String,
    /// The user who mounted it.
    uid: Option<u32>,
    /// A process in whose mount namespace it is mounted; null for that of the caller.
    in_namespace_of: Option<u32>,
    /// `mounted`, `elsewhere`, `dead`, `no-permission`, `no-answer` or `error`.
    state: &'static str,
    engine: Option<&'static str>,
    read_only: Option<bool>,
    size_bytes: Option<u64>,
    used_bytes: Option<u64>,
    /// Free for users other than root.
    available_bytes: Option<u64>,
    /// For a volume with generations.
    pool_size_bytes: Option<u64>,
    pool_used_bytes: Option<u64>,
    /// Open transactions: those of all users for root, else those of the caller.
    transactions: Option<usize>,
    snapshots: Option<usize>,
    /// The version of the daemon's control interface.
    interface_version: Option<u32>,
    #[serde(skip)]
    why: String,
}

impl Row {
    fn of(found: &Found) -> Row {
        let (state, why) = match &found.state {
            State::Serves(_) => ("mounted", String::new()),
            State::Dead => (
                "dead",
                format!(
                    "its daemon has died: unmount it with 'xact umount {}'",
                    found.mounted.mount.point.display()
                ),
            ),
            State::NoPermission => ("no-permission", "no permission to use the mount".into()),
            State::Elsewhere => ("elsewhere", String::new()),
            State::Silent => ("no-answer", "its daemon does not answer".into()),
            State::Failed(failure) => ("error", failure.message.clone()),
        };
        let facts: Option<&Facts> = match &found.state {
            State::Serves(facts) => Some(facts),
            _ => None,
        };
        Row {
            mount: found.mounted.mount.point.display().to_string(),
            image: mounts::image(&found.mounted.mount).display().to_string(),
            uid: found.mounted.uid,
            in_namespace_of: found.mounted.process,
            state,
            engine: facts.and_then(Facts::engine),
            read_only: facts.map(Facts::is_read_only),
            size_bytes: facts.map(Facts::size_bytes),
            used_bytes: facts.map(|facts| facts.size_bytes().saturating_sub(facts.free_bytes())),
            available_bytes: facts.map(Facts::available_bytes),
            pool_size_bytes: facts.and_then(|facts| Some(facts.pool?.size)),
            pool_used_bytes: facts.and_then(|facts| Some(facts.pool?.used)),
            transactions: facts.and_then(|facts| Some(facts.transactions.as_ref()?.len())),
            snapshots: facts.and_then(|facts| Some(facts.snapshots.as_ref()?.len())),
            interface_version: facts.map(|facts| facts.interface),
            why,
        }
    }

    fn text(&self) -> String {
        let mut parts = vec![printable(&self.image).to_string()];
        parts.extend(self.uid.map(|uid| format!("user {uid}")));
        parts.extend(self.in_namespace_of.map(|id| format!("in the mount namespace of process {id}")));
        parts.extend(self.engine.map(|engine| match engine {
            "none" => "no engine".to_owned(),
            engine => engine.to_owned(),
        }));
        if let (Some(used), Some(size)) = (self.used_bytes, self.size_bytes) {
            parts.push(format!("{} of {} used", size_text(used), size_text(size)));
        }
        if let (Some(used), Some(size)) = (self.pool_used_bytes, self.pool_size_bytes) {
            parts.push(format!("{} of the pool of {}", size_text(used), size_text(size)));
        }
        let counted = |count: usize, what: &str| match count {
            1 => format!("1 {what}"),
            _ => format!("{count} {what}s"),
        };
        parts.extend(self.transactions.filter(|&n| n > 0).map(|n| counted(n, "open transaction")));
        parts.extend(self.snapshots.filter(|&n| n > 0).map(|n| counted(n, "snapshot")));
        parts.extend(self.read_only.filter(|&is| is).map(|_| "read-only".to_owned()));
        if !self.why.is_empty() {
            parts.push(printable(&self.why).to_string());
        }
        format!("{}  {}\n", printable(&self.mount), parts.join(", "))
    }
}

pub fn list(args: &List) -> Result<()> {
    let rows: Vec<Row> = volumes::ask(volumes::mounted()?).iter().map(Row::of).collect();
    if args.json {
        return print_json(&rows);
    }
    print(&rows.iter().map(Row::text).collect::<String>())
}
