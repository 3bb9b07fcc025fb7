//! The folder `MNT/.xact`, which is the server's own:
//!
//! ```text
//!   MNT/.xact             0733 root   not listed; O_TMPFILE in it opens a control channel
//!   MNT/.xact/tx          0711 root
//!   MNT/.xact/tx/ID       0700 owner  keeps others out, by the kernel's own check
//!   MNT/.xact/tx/ID/root              the root of the transaction's view
//! ```
//! and the snapshots (see `past`).

use xact::{AbortHistory, Isolation, RESOURCES, Resource};
use xact_types::{Errno, Error, Ino, Result};

use super::jobs::Kind;
use super::{Outcome, Place, Server, atomic, ending, savepoints};
use crate::abi::{self, Attr, AttrOut, EntryOut, InHeader, IoctlIn, IoctlOut, OpenOut};
use crate::channel::Channel;
use crate::control::{self, Begin, Pool, Status, USER_UNLIMITED, USERS_MAX, UserUse, Users, Version};
use crate::node::Node;
use crate::reply::{Reply, VALID_SECS};
use crate::request::Operation;
use crate::server::attributes;

use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// How often all of the pool is looked at for users.
const POOL_LOOK: Duration = Duration::from_secs(1);

/// Whose transaction it is, and what `stat` shows in its view.
struct Owner {
    uid: u32,
    gid: u32,
    own_inodes: bool,
}

impl Server {
    fn hidden_attr(&self, node: Node) -> Result<Attr> {
        let dir = libc::S_IFDIR;
        let mut size = 0;
        let (mode, nlink, uid, gid) = match node {
            Node::Hidden => (dir | 0o733, 5, 0, 0),
            Node::Snapshots => (dir | 0o755, 2, 0, 0),
            Node::Images => (dir | 0o700, 2, 0, 0),
            Node::Image(nr) => {
                size = self.past.get(nr)?.snapshot.image()?.size_bytes();
                (libc::S_IFREG | 0o400, 1, 0, 0)
            }
            Node::TxList => (dir | 0o711, 2, 0, 0),
            Node::Tx(nr) => {
                let tx = self.registry.view(nr)?;
                (dir | 0o700, 3, tx.uid, tx.gid)
            }
            Node::Control(_) => (libc::S_IFREG | 0o600, 0, 0, 0),
            Node::Base(_) | Node::View(..) | Node::Past(..) => return Err(Errno::EIO.into()),
        };
        Ok(Attr { ino: node.id(), size, mode, nlink, uid, gid, ..Default::default() })
    }

    pub(super) fn hidden_entry(&self, node: Node) -> Result<EntryOut> {
        let attr = self.hidden_attr(node)?;
        let (nodeid, entry_valid, attr_valid) = (node.id(), VALID_SECS, VALID_SECS);
        Ok(EntryOut { nodeid, entry_valid, attr_valid, attr, ..Default::default() })
    }

    pub(super) fn in_hidden(
        &self,
        node: Node,
        header: &InHeader,
        operation: &Operation<'_>,
        reply: &mut Reply,
    ) -> Result<()> {
        match (operation, node) {
            (Operation::Lookup { name }, _) => reply.put(&self.hidden_lookup(node, name)?),
            (Operation::GetAttr, _) => {
                let attr = self.hidden_attr(node)?;
                reply.put(&AttrOut { attr_valid: VALID_SECS, attr, ..Default::default() });
            }
            (Operation::Tmpfile { .. }, Node::Hidden) => {
                let account = self.host.accounts().of(header.uid);
                let channel = Node::Control(self.registry.open_channel(&account)?);
                reply.put(&self.hidden_entry(channel)?);
                reply.put(&OpenOut::default());
            }
            (Operation::ReadDir { args, plus }, Node::Snapshots | Node::Images) => {
                return self.past_list(node, args, *plus, reply);
            }
            // Not listed: whoever may enter knows the name.
            (Operation::ReadDir { .. } | Operation::Fsync { .. }, _) => {}
            (Operation::GetXattr { .. }, _) => return Err(Errno::ENODATA.into()),
            (Operation::ListXattr { size: 0 }, _) => reply.put(&abi::GetxattrOut::default()),
            (Operation::ListXattr { .. }, _) => {}
            // Without it the kernel would not ask any file again.
            (Operation::Statx, _) => {
                let attr = self.hidden_attr(node)?;
                reply.put(&abi::StatxOut {
                    attr_valid: VALID_SECS,
                    stat: statx(&attr),
                    ..Default::default()
                });
            }
            (_, Node::Image(nr)) => {
                return self.in_image(&*self.past.get(nr)?.snapshot.image()?, operation, reply);
            }
            (Operation::Read(_) | Operation::Write { .. } | Operation::Lseek(_), _) => {
                return Err(Errno::EINVAL.into());
            }
            (Operation::Rename { .. } | Operation::Link { .. } | Operation::CopyFileRange { .. }, _) => {
                return Err(Errno::EXDEV.into());
            }
            _ => return Err(Errno::EPERM.into()),
        }
        Ok(())
    }

    fn hidden_lookup(&self, node: Node, name: &[u8]) -> Result<EntryOut> {
        match node {
            Node::Hidden if name == b"tx" => self.hidden_entry(Node::TxList),
            Node::Hidden if name == b"snapshots" => self.hidden_entry(Node::Snapshots),
            Node::Hidden if name == b"images" => self.hidden_entry(Node::Images),
            Node::Snapshots | Node::Images => self.past_lookup(node, name),
            Node::TxList => {
                let id = std::str::from_utf8(name).ok().and_then(parse_id).ok_or(Errno::ENOENT)?;
                let tx = self.registry.by_id(id).ok_or(Errno::ENOENT)?;
                self.hidden_entry(Node::Tx(tx.nr))
            }
            Node::Tx(nr) if name == b"root" => {
                let tx = self.registry.view(nr)?;
                let place = Place::Tx { _pass: tx.enter()?, tx };
                let root = place.view().attr(Ino::ROOT)?;
                Ok(self.hold_checked(&place, &root, None)?.ok_or(Errno::ESTALE)?)
            }
            _ => Err(Errno::ENOENT.into()),
        }
    }

    pub(super) fn ioctl(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        header: &InHeader,
        node: Node,
        args: &IoctlIn,
        input: &[u8],
        reply: &mut Reply,
    ) -> Result<Outcome> {
        if self.volume_ioctl(header, node, args, input, reply)? {
            return Ok(Outcome::Done);
        }
        match (args.cmd, node) {
            (control::IOC_VERSION, _) => put(reply, &Version { abi: control::ABI, reserved: 0 }),
            (control::IOC_COUNTERS, _) => put(reply, &self.host.counters()),
            (control::IOC_POOL, _) => put(reply, &self.pool_use(header)?),
            (control::IOC_USERS, _) => {
                let (mut users, _) = Users::read_from_prefix(input).map_err(|_| Errno::EINVAL)?;
                self.users(header, &mut users);
                put(reply, &users);
            }
            (control::IOC_LATENCIES, _) => put(reply, &self.host.latencies()),
            (control::IOC_MODES, _) => self.modes_ioctl(header, node, input, reply)?,
            (control::IOC_SYNC, _) => {
                self.sync()?;
                put(reply, &())
            }
            (control::IOC_SNAPSHOT, _) => self.snapshot_ioctl(header, node, input, reply)?,
            (control::IOC_SNAPSHOT_PATHS, _) => self.snapshot_paths_ioctl(header, node, input, reply)?,
            (control::IOC_SNAPSHOT_DIFF, Node::Control(number)) => {
                self.snapshot_diff_ioctl(number, header, input, reply)?;
            }
            (control::IOC_BEGIN, Node::Control(number)) => {
                let (mut begin, _) = Begin::read_from_prefix(input).map_err(|_| Errno::EINVAL)?;
                if begin.flags & !(control::BEGIN_SNAPSHOT | control::BEGIN_OWN_INODES) != 0
                    || begin.reserved != 0
                {
                    return Err(Errno::EINVAL.into());
                }
                let snapshot = begin.flags & control::BEGIN_SNAPSHOT != 0;
                let isolation = if snapshot { Isolation::Snapshot } else { Isolation::Serializable };
                let losses = self.registry.losses(number);
                let own_inodes = begin.flags & control::BEGIN_OWN_INODES != 0;
                let by = Owner { uid: header.uid, gid: header.gid, own_inodes };
                if losses.gives_priority() {
                    // It waits for commits, which wait for workers.
                    let (channel, unique) = (channel.clone(), header.unique);
                    let account = self.host.accounts().of(by.uid);
                    self.spawn_for(&account, Kind::End, move |server| {
                        let begun = server.begin(number, &by, isolation, &losses);
                        begin.id = begun.as_ref().copied().unwrap_or(0);
                        ending::answer(&channel, unique, begun.err().map(|e| e.errno()), &begin);
                    })?;
                    return Ok(Outcome::Later);
                }
                begin.id = self.begin(number, &by, isolation, &losses)?;
                put(reply, &begin)
            }
            (control::IOC_COMMIT, Node::Control(number)) => {
                let (commit, _) = control::Commit::ref_from_prefix(input).map_err(|_| Errno::EINVAL)?;
                const KNOWN: u32 = control::COMMIT_ORDERED
                    | control::COMMIT_RETAIN
                    | control::COMMIT_ONLY
                    | control::COMMIT_CONSOLIDATE
                    | control::COMMIT_FOLLOW;
                if commit.flags & !KNOWN != 0 {
                    return Err(Errno::EINVAL.into());
                }
                self.commit_later(number, channel, header, commit.flags)?;
                return Ok(Outcome::Later);
            }
            (control::IOC_ABORT, Node::Control(number)) => {
                self.abort_later(number, channel, header)?;
                return Ok(Outcome::Later);
            }
            (control::IOC_STATUS, Node::Control(number)) => {
                let status = self.registry.of_channel(number).map_or_else(Status::default, |tx| Status {
                    active: 1,
                    doomed: tx.transaction.is_doomed().into(),
                    id: tx.transaction.id(),
                });
                put(reply, &status)
            }
            (command, Node::View(..) | Node::Control(_)) if savepoints::is_one(command) => {
                self.savepoint_later(node, channel, header, command, input)?;
                return Ok(Outcome::Later);
            }
            (command, Node::Control(number)) => {
                return self.decide(number, channel, header, command, input, reply);
            }
            (atomic::GET_FEATURES, Node::Base(_)) => put(reply, &atomic::features(header)),
            // In a transaction SQLite's journal costs no I/O, and there is nothing to gain.
            (command, Node::Base(ino)) if atomic::is_one(command) => {
                return self.atomic_ioctl(channel, ino, header, command, reply);
            }
            (attributes::SETFLAGS | attributes::FSSETXATTR, Node::Past(..)) => {
                return Err(Error::ReadOnly);
            }
            (command, Node::Base(_) | Node::View(..) | Node::Past(..)) => {
                let (place, ino) = self.enter(node, header)?;
                let output = attributes::flags_ioctl(place.view(), ino, header, command, input)?;
                let output = output.ok_or(Errno::ENOTTY)?;
                reply.put(&IoctlOut::default());
                reply.put_bytes(&output[..output.len().min(args.out_size as usize)]);
            }
            _ => return Err(Errno::ENOTTY.into()),
        }
        Ok(Outcome::Done)
    }

    /// What users have, from `users.from` on.
    fn users(&self, header: &InHeader, users: &mut Users) {
        let accounts = self.host.accounts();
        let sees_all = self.owner_only(header).is_ok();
        let all = accounts.all().into_iter();
        let mut wanted = all
            .filter(|account| account.uid() >= users.from && (sees_all || account.uid() == header.uid))
            .peekable();
        users.limits = in_use(u32::MAX, accounts.limits().each(), 0);
        users.len = 0;
        for (to, account) in users.users.iter_mut().zip(wanted.by_ref().take(USERS_MAX)) {
            *to = in_use(account.uid(), Resource::ALL.map(|of| account.used(of)), account.refused());
            if account.limit(Resource::Transactions) == u64::MAX {
                to.flags = USER_UNLIMITED;
            }
            users.len += 1;
        }
        users.done = u32::from(wanted.peek().is_none());
        users.from = wanted.peek().map_or(u32::MAX, |next| next.uid());
    }

    /// How full the pool is. That costs what the pool holds, and commits wait meanwhile: so others than the owner are
    /// told what was so a second ago.
    fn pool_use(&self, header: &InHeader) -> Result<Pool> {
        let mut known = self.pool_use.lock();
        if let Some((at, pool)) = &*known
            && at.elapsed() < POOL_LOOK
            && self.owner_only(header).is_err()
        {
            return Ok(*pool);
        }
        let pool = self.host.pool()?;
        *known = Some((Instant::now(), pool));
        Ok(pool)
    }

    /// `EDQUOT`: its user has too many transactions.
    fn begin(&self, channel: u32, by: &Owner, isolation: Isolation, losses: &AbortHistory) -> Result<u64> {
        let open = self.host.accounts().of(by.uid).charge(Resource::Transactions, 1)?;
        let transaction = self.host.begin(by.uid, isolation, losses)?;
        let id = transaction.id();
        if let Err(e) = self.registry.add(channel, transaction.clone(), open, by.gid, by.own_inodes) {
            transaction.abort();
            return Err(e.into());
        }
        Ok(id)
    }
}

pub(super) fn put<T: IntoBytes + Immutable>(reply: &mut Reply, output: &T) {
    reply.put(&IoctlOut::default());
    reply.put(output);
}

fn in_use(uid: u32, amounts: [u64; RESOURCES], refused: u64) -> UserUse {
    let of = |resource: Resource| amounts[resource as usize];
    UserUse {
        uid,
        flags: 0,
        channels: of(Resource::Channels),
        transactions: of(Resource::Transactions),
        persisted: of(Resource::Persisted),
        savepoints: of(Resource::Savepoints),
        memory: of(Resource::Memory),
        descriptors: of(Resource::Descriptors),
        refused,
    }
}

/// A number as `{}` prints it, and in no other form: else one folder had several names.
fn parse_id(text: &str) -> Option<u64> {
    text.parse().ok().filter(|id: &u64| id.to_string() == text)
}

fn statx(attr: &Attr) -> abi::Statx {
    abi::Statx {
        mask: libc::STATX_BASIC_STATS,
        blksize: 4096,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: attr.mode as u16,
        ino: attr.ino,
        size: attr.size,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_has_one_name() {
        assert_eq!(parse_id("17"), Some(17));
        for text in ["017", "+17", "", "x", "-1", " 1"] {
            assert_eq!(parse_id(text), None, "{text:?}");
        }
    }
}
