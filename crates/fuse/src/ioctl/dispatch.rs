//! The ioctls of a mount, and the functions that handle them.

use std::sync::Arc;

use xact::{AbortHistory, ConflictDetection, Isolation, Resource, SharedTransaction, TxOptions};
use xact_control::abi::{self as control, Begin, FileUses, Status, Users, Version};
use xact_types::{Errno, Error, Result};
use zerocopy::FromBytes;

use crate::ioctl::answer::{answer, put};
use crate::ioctl::{atomic_write, savepoints, usage};
use crate::ops::attributes;
use crate::protocol::abi::{InHeader, IoctlIn, IoctlOut};
use crate::protocol::node::Node;
use crate::protocol::reply::Reply;
use crate::server::jobs::Kind;
use crate::server::{Outcome, Server};
use crate::transport::channel::Channel;

/// The user of a transaction, and the inode numbers that `stat` returns in its view.
struct BeginRequest {
    uid: u32,
    gid: u32,
    own_inodes: bool,
}

impl Server {
    pub(crate) fn ioctl(
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
            (control::IOC_VERSION, _) => put(reply, &Version { abi: control::ABI_VERSION, reserved: 0 }),
            (control::IOC_COUNTERS, _) => put(reply, &usage::counters(&self.volume)),
            (control::IOC_POOL, _) => put(reply, &self.pool_use(header)?),
            (control::IOC_USERS, _) => {
                let (mut users, _) = Users::read_from_prefix(input).map_err(|_| Errno::EINVAL)?;
                self.users(header, &mut users);
                put(reply, &users);
            }
            (control::IOC_FILES, _) => {
                self.owner_only(header)?;
                let (mut files, _) = FileUses::read_from_prefix(input).map_err(|_| Errno::EINVAL)?;
                usage::files(&self.volume, &mut files);
                put(reply, &files);
            }
            (control::IOC_LATENCIES, _) => put(reply, &usage::latencies(&self.volume)),
            (control::IOC_OUTCOME, _) => {
                self.owner_only(header)?;
                put(reply, &self.outcome());
            }
            (control::IOC_MODES, _) => {
                self.reply_with_reason(input, reply, |request| self.modes(header, node, request))?;
            }
            (control::IOC_FILE_MODE, Node::Live(_) | Node::View(..) | Node::Snapshot(..)) => {
                self.reply_with_reason(input, reply, |request| self.file_mode(header, node, request))?;
            }
            (control::IOC_MOUNT, _) => {
                self.reply_with_reason(input, reply, |request| self.mount_info(request))?;
            }
            (control::IOC_SYNC, _) => {
                self.sync()?;
                put(reply, &())
            }
            (control::IOC_SNAPSHOT, _) => {
                self.snapshot_ioctl(header, input, reply, |request| self.snapshot(node, request))?;
            }
            (control::IOC_SNAPSHOT_PATHS, _) => {
                self.snapshot_ioctl(header, input, reply, |request| self.snapshot_of_paths(node, request))?;
            }
            (control::IOC_SNAPSHOT_DIFF, Node::Control(number)) => {
                self.snapshot_ioctl(header, input, reply, |request| self.snapshot_diff(number, request))?;
            }
            (control::IOC_BEGIN, Node::Control(number)) => {
                let (mut begin, _) = Begin::read_from_prefix(input).map_err(|_| Errno::EINVAL)?;
                const KNOWN: u32 = control::BEGIN_SNAPSHOT | control::BEGIN_OWN_INODES | control::BEGIN_EAGER;
                if begin.flags & !KNOWN != 0 || begin.reserved != 0 {
                    return Err(Errno::EINVAL.into());
                }
                let options = options_of(begin.flags);
                let losses = self.transactions.losses(number);
                let own_inodes = begin.flags & control::BEGIN_OWN_INODES != 0;
                let by = BeginRequest { uid: header.uid, gid: header.gid, own_inodes };
                if losses.gives_priority() {
                    // It waits for commits, which wait for workers.
                    let (channel, unique) = (channel.clone(), header.unique);
                    let account = self.volume.accounts().of(by.uid);
                    self.spawn_for(&account, Kind::End, move |server| {
                        let begun = server.begin(number, &by, options, &losses);
                        begin.id = begun.as_ref().copied().unwrap_or(0);
                        answer(&channel, unique, begun.err().map(|e| e.errno()), &begin);
                    })?;
                    return Ok(Outcome::Later);
                }
                begin.id = self.begin(number, &by, options, &losses)?;
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
                let status = self.transactions.of_channel(number).map_or_else(Status::default, |tx| Status {
                    active: 1,
                    doomed: tx.transaction.is_doomed().into(),
                    id: tx.id(),
                });
                put(reply, &status)
            }
            (control::IOC_CHANNEL_KEY, Node::Control(number)) => {
                let key = self.transactions.channel_key(number)?;
                put(reply, &control::ChannelKey { key })
            }
            (control::IOC_WRITE_FILE, Node::Live(ino)) => {
                return self.write_file_ioctl(channel, ino, header, input, reply);
            }
            (command, Node::View(..) | Node::Control(_)) if savepoints::is_savepoint_command(command) => {
                self.savepoint_later(node, channel, header, command, input)?;
                return Ok(Outcome::Later);
            }
            (command, Node::Control(number)) => {
                return self.tx_ioctl(number, channel, header, command, input, reply);
            }
            (atomic_write::GET_FEATURES, Node::Live(_)) => put(reply, &atomic_write::features(header)),
            // In a transaction SQLite's journal costs no I/O, so atomic writes would gain nothing.
            (command, Node::Live(ino)) if atomic_write::is_atomic_command(command) => {
                return self.atomic_ioctl(channel, ino, header, command, reply);
            }
            (attributes::SETFLAGS | attributes::FSSETXATTR, Node::Snapshot(..)) => {
                return Err(Error::ReadOnly);
            }
            (command, Node::Live(_) | Node::View(..) | Node::Snapshot(..)) => {
                let (request_view, ino) = self.enter(node, header)?;
                let output = attributes::flags_ioctl(request_view.view(), ino, header, command, input)?;
                let output = output.ok_or(Errno::ENOTTY)?;
                if matches!(command, attributes::SETFLAGS | attributes::FSSETXATTR) {
                    // The inode's ctime has changed, and the kernel keeps the old one.
                    self.forget_attributes(request_view.node(ino));
                }
                reply.put(&IoctlOut::default());
                reply.put_bytes(&output[..output.len().min(args.out_size as usize)]);
            }
            _ => return Err(Errno::ENOTTY.into()),
        }
        Ok(Outcome::Done)
    }

    /// `EDQUOT`: its user has too many transactions.
    fn begin(
        &self,
        channel: u32,
        by: &BeginRequest,
        options: TxOptions,
        losses: &AbortHistory,
    ) -> Result<u64> {
        let open = self.volume.accounts().of(by.uid).charge(Resource::Transactions, 1)?;
        let transaction = self.begin_transaction(by.uid, options, losses)?;
        let id = transaction.options().id;
        if let Err(e) = self.transactions.add(channel, transaction.clone(), open, by.gid, by.own_inodes) {
            transaction.abort();
            return Err(e.into());
        }
        Ok(id)
    }

    /// Begins a transaction for the user `uid`, after attempts that were lost to conflicts. If
    /// these give it a claim, it waits for the running commits.
    pub(crate) fn begin_transaction(
        &self,
        uid: u32,
        options: TxOptions,
        losses: &AbortHistory,
    ) -> Result<Arc<SharedTransaction>> {
        self.volume.health()?;
        let options = TxOptions { owner: uid, mounted: true, ..options };
        Ok(self.volume.begin_after(options, losses).into_shared())
    }
}

/// The options that flags of a begin ask for.
fn options_of(flags: u32) -> TxOptions {
    let is_set = |flag| flags & flag != 0;
    TxOptions {
        isolation: match is_set(control::BEGIN_SNAPSHOT) {
            true => Isolation::Snapshot,
            false => Isolation::Serializable,
        },
        detection: match is_set(control::BEGIN_EAGER) {
            true => ConflictDetection::Eager,
            false => ConflictDetection::Lazy,
        },
        ..TxOptions::default()
    }
}
