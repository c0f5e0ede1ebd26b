"""One Raft group as a pure state machine: messages and ticks in, Ready out.

raft_core       the public API; joins the parts below
commitment      the commit rule: quorum match, current term only
log_matching    which appends a follower accepts
vote_granting   when a vote is granted; members that lost their log
election        term, vote, role; timeouts and campaigns
membership      joint consensus; the configuration in use
read_index      linearizable reads and the leader's lease
leader          progress of the peers, what to send, transfer
follower        answers to appends, heartbeats and snapshots
progress        one peer's match and next index; what majorities hold
local_progress  what this member has written, flushed and applied
log, quorum, messages, ready    the values and sums that all of these use"""
