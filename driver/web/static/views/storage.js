// The WAL and the journal.
import { get } from "../api.js";
import { bytes, count, plain, seconds } from "../format.js";
import { html } from "../html.js";
import { Age, Empty, Facts, Failure, Fetching, Moment, Name, sizeOf } from "../parts.js";

/** A view of one answer, without a list. `show(answer, now)` returns the view. */
class Answered extends Fetching {
  get everyMs() {
    return 5000;
  }

  async fetch() {
    return { answer: await get(this.path) };
  }

  render({ store }, { answer, error }) {
    return html`
      <h1 tabindex="-1">${this.title}</h1>
      ${error && html`<${Failure} error=${error} />`}
      ${!answer && !error && html`<p class="muted">Loading…</p>`}
      ${answer && this.show(answer, store.now())}
    `;
  }
}

export class WalView extends Answered {
  title = "Write-ahead log";
  path = "/v1/wal";

  show(wal, now) {
    if (!wal.url) return html`<${Empty}>This stream has no WAL: <code>receiver.copies</code> hosts hold each block until its batch is completed. See <a href="#/hosts">hosts</a>.<//>`;
    return html`
      <${Facts}
        of=${{
          place: html`<${Name} text=${wal.url} />`,
          size: `${bytes(wal.bytes)} in ${count(wal.segments)} segments, ${count(wal.blocks)} blocks`,
          "not needed any more": `${bytes(wal.free_bytes)} in ${count(wal.free_segments)} segments`,
          retention: `${seconds(wal.retention_seconds)}, at most ${bytes(wal.retention_bytes)}`,
          "held only for cursors": bytes(wal.held_for_cursors),
          "not synced yet": bytes(wal.unsynced_bytes),
          "oldest block": wal.oldest_ms ? html`<${Moment} ms=${wal.oldest_ms} now=${now} />` : "none",
        }}
      />
      <h2>Segments that are deleted next</h2>
      ${wal.oldest.length === 0
        ? html`<${Empty}>No segment is closed yet.<//>`
        : html`<div class="scroll" role="region" aria-label="Segments" tabindex="0"><table>
            <thead><tr><th scope="col">Segment</th><th scope="col" class="number">Bytes</th><th scope="col" class="number">Blocks</th><th scope="col" class="number">Held by batches</th><th scope="col" class="number">Unread by cursors</th><th scope="col">Not needed since</th></tr></thead>
            <tbody>${wal.oldest.map((segment) => html`<tr key=${segment.path}><th scope="row"><${Name} text=${segment.path} /></th><td class="number">${sizeOf(segment.bytes)}</td><td class="number">${count(segment.blocks)}</td><td class="number">${count(segment.held)}</td><td class="number">${count(segment.unread)}</td><td>${segment.released_ms ? html`<${Age} ms=${segment.released_ms} now=${now} />` : "needed"}</td></tr>`)}</tbody>
          </table></div>`}
    `;
  }
}

export class JournalView extends Answered {
  title = "Journal";
  path = "/v1/journal";

  show(journal, now) {
    const since = journal.events - journal.snapshot_events;
    return html`<${Facts}
      of=${{
        place: html`<${Name} text=${journal.url} />`,
        size: journal.bytes === null ? "unknown" : `${bytes(journal.bytes)} in ${count(journal.segments)} segments`,
        "free space of its store": journal.free_bytes === null ? "unknown" : bytes(journal.free_bytes),
        events: count(journal.events),
        snapshot: journal.snapshot_ms ? html`<${Moment} ms=${journal.snapshot_ms} now=${now} />, ${count(since)} events ago` : "none yet",
        "driver's epoch": journal.driver_epoch.toString(16),
        lease: journal.holder ? `${plain(journal.holder)}; another driver may lead ${seconds(journal.lease_seconds)} after its last renewal` : "none",
        timeline: journal.lineage,
        rebuilds: count(journal.rebuilds),
      }}
    />`;
  }
}
