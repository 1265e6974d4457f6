/* Gathers messages of librdkafka into the buffers of Arrow columns. Called by forebay.kafka.native through ctypes, which releases
   the GIL. It is linked to no library: forebay_use receives the functions of the librdkafka that confluent-kafka has loaded.

   It is also a plug-in of librdkafka (`plugin.library.paths`): an interceptor receives the handle of each new client.

   Records are taken as events of a queue. The functions that return messages call the client's callbacks for other operations,
   and confluent-kafka's callbacks must not be called outside of its own functions. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

/* rd_kafka_message_t of librdkafka's public header; the layout is part of its ABI */
typedef struct {
  int err;
  void *topic;
  int32_t partition;
  void *value;
  size_t value_size;
  void *key;
  size_t key_size;
  int64_t offset;
  void *opaque;
} message;

/* rd_kafka_topic_partition_t, as far as it is read */
typedef struct {
  char *topic;
  int32_t partition;
  int64_t offset;
} place;

typedef void event;

typedef int (*on_new)(void *client, const void *conf, void *opaque, char *error, size_t error_size);

typedef struct {
  event *(*poll)(void *queue, int timeout_ms);
  int (*type)(const event *);
  const message *(*next_message)(event *);
  int (*error)(event *);
  const char *(*error_text)(event *);
  place *(*place_of)(event *);
  void (*destroy_place)(place *);
  void (*destroy)(event *);
  int64_t (*timestamp)(const message *, int *kind);
  int32_t (*leader_epoch)(const message *);
  int (*headers)(const message *, void **headers);
  int (*header_at)(const void *headers, size_t index, const char **name, const void **value, size_t *size);
  int (*add_on_new)(void *conf, const char *name, on_new callback, void *opaque);
} library;

/* Consecutive messages of one partition, or one error. */
typedef struct {
  void *topic;
  int64_t begin, end; /* of the items */
  int64_t key_bytes, value_bytes, header_count, header_name_bytes, header_value_bytes;
  int64_t null_keys, null_values, null_headers;
  int32_t partition, is_error, leader_epoch, reserved;
} group;

/* An operation of the queue: a message, or an error (message NULL). */
typedef struct {
  const message *message;
  event *event;
} item;

enum { NO_TIME = 0, CREATE_TIME = 1, LOG_APPEND_TIME = 2 };
enum { FETCH_EVENT = 0x2, ERROR_EVENT = 0x8 };

/* A group's columns stay far below the 2 GiB that 32-bit offsets can address. */
static const int64_t COLUMN_BYTES_MAX = (int64_t)1 << 30;

static library used;
static __thread void *newest;

/* The version of this interface, which the Python side compares. */
int forebay_version(void) { return 2; }

size_t forebay_group_size(void) { return sizeof(group); }

void forebay_use(const library *functions) { used = *functions; }

static int remember(void *client, const void *conf, void *opaque, char *error, size_t error_size) {
  (void)conf, (void)opaque, (void)error, (void)error_size;
  newest = client;
  return 0;
}

/* Called by librdkafka when a client's configuration names this library as a plug-in. */
int conf_init(void *conf, void **opaque, char *error, size_t error_size) {
  (void)opaque, (void)error, (void)error_size;
  if (used.add_on_new) used.add_on_new(conf, "forebay", remember, NULL); /* without it, forebay_take_client returns NULL */
  return 0;
}

/* Returns the client that this thread has created last with this plug-in, once. */
void *forebay_take_client(void) {
  void *client = newest;
  newest = NULL;
  return client;
}

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Takes up to `size` items from the queue: waits `timeout_ms` at most for the first one, and takes what arrives within
   `gather_ms` after it, but waits no longer than `timeout_ms` in all. Returns their number. */
int64_t forebay_receive(void *queue, int timeout_ms, int gather_ms, item *items, int64_t size) {
  int64_t count = 0, until = 0, end = now_ms() + timeout_ms;
  while (count < size) {
    event *found = used.poll(queue, 0);
    if (!found) { /* the clock is read only here: reading it for each message took a quarter of the time */
      int64_t left = (count ? until : end) - now_ms();
      if (left > 0) found = used.poll(queue, (int)left);
    }
    if (!found) break;
    int type = used.type(found);
    const message *m = type == FETCH_EVENT ? used.next_message(found) : NULL;
    int is_error = type == ERROR_EVENT || (m && m->err);
    if (is_error) m = NULL;
    if (!m && !is_error) {
      used.destroy(found);
      continue;
    }
    if (!count) {
      until = now_ms() + gather_ms;
      if (until > end) until = end;
    }
    items[count].message = m;
    items[count++].event = found;
  }
  return count;
}

/* Describes an error. Returns its code. Without a partition, `topic` is "" and `partition` -1. */
int forebay_error(event *e, char *topic, size_t topic_size, int32_t *partition, int64_t *offset, const char **text) {
  place *at = used.place_of(e);
  topic[0] = 0;
  *partition = -1, *offset = -1;
  if (at) {
    strncat(topic, at->topic, topic_size - 1);
    *partition = at->partition, *offset = at->offset;
    used.destroy_place(at);
  }
  *text = used.error_text(e);
  return used.error(e);
}

static void measure_headers(const message *m, group *g) {
  void *headers;
  if (used.headers(m, &headers) != 0) {
    g->null_headers++;
    return;
  }
  const char *name;
  const void *value;
  size_t size;
  size_t index = 0;
  for (; used.header_at(headers, index, &name, &value, &size) == 0; index++) {
    g->header_count++;
    g->header_name_bytes += (int64_t)strlen(name);
    if (value) g->header_value_bytes += (int64_t)size;
  }
  if (index == 0) g->null_headers++;
}

/* Finds runs of one partition. `groups` has room for `count`. Returns the number of groups. */
int64_t forebay_measure(const item *items, int64_t count, int with_headers, group *groups) {
  int64_t found = 0;
  group *g = NULL;
  for (int64_t i = 0; i < count; i++) {
    const message *m = items[i].message;
    if (!g || g->is_error || !m || g->topic != m->topic || g->partition != m->partition ||
        g->key_bytes + (int64_t)m->key_size > COLUMN_BYTES_MAX ||
        g->value_bytes + (int64_t)m->value_size > COLUMN_BYTES_MAX ||
        g->header_name_bytes > COLUMN_BYTES_MAX || g->header_value_bytes > COLUMN_BYTES_MAX) {
      g = &groups[found++];
      memset(g, 0, sizeof *g);
      g->begin = i;
      g->is_error = !m;
      if (m) g->topic = m->topic, g->partition = m->partition;
    }
    g->end = i + 1;
    if (!m) continue;
    g->key_bytes += m->key ? (int64_t)m->key_size : 0;
    g->value_bytes += m->value ? (int64_t)m->value_size : 0;
    g->null_keys += !m->key;
    g->null_values += !m->value;
    if (with_headers) measure_headers(m, g);
  }
  for (int64_t k = 0; k < found; k++)
    if (!groups[k].is_error) groups[k].leader_epoch = used.leader_epoch(items[groups[k].end - 1].message);
  return found;
}

/* Fills columns with `count` messages. `key_ends` and `value_ends` have count + 1 entries, the validity bitmaps (zeroed by the
   caller; NULL without nulls) count bits. Timestamp types as in Spark: 0 create time, 1 log append time, -1 none. */
void forebay_fill(const item *items, int64_t count, uint8_t *keys, int32_t *key_ends, uint8_t *key_valid,
                  uint8_t *values, int32_t *value_ends, uint8_t *value_valid, int64_t *offsets, int64_t *times,
                  int32_t *time_kinds) {
  int32_t key_end = 0, value_end = 0;
  key_ends[0] = value_ends[0] = 0;
  for (int64_t i = 0; i < count; i++) {
    const message *m = items[i].message;
    if (m->key) {
      memcpy(keys + key_end, m->key, m->key_size);
      key_end += (int32_t)m->key_size;
      if (key_valid) key_valid[i >> 3] |= (uint8_t)(1u << (i & 7));
    }
    if (m->value) {
      memcpy(values + value_end, m->value, m->value_size);
      value_end += (int32_t)m->value_size;
      if (value_valid) value_valid[i >> 3] |= (uint8_t)(1u << (i & 7));
    }
    key_ends[i + 1] = key_end;
    value_ends[i + 1] = value_end;
    offsets[i] = m->offset;
    int kind = NO_TIME;
    int64_t time = used.timestamp(m, &kind);
    time_kinds[i] = kind == CREATE_TIME ? 0 : kind == LOG_APPEND_TIME ? 1 : -1;
    times[i] = time_kinds[i] < 0 ? -1 : time;
  }
}

/* Fills the headers' columns. `ends` has count + 1 entries, `name_ends` and `value_ends` one more than there are headers. */
void forebay_fill_headers(const item *items, int64_t count, int32_t *ends, uint8_t *valid, uint8_t *names,
                          int32_t *name_ends, uint8_t *values, int32_t *value_ends, uint8_t *value_valid) {
  int32_t entries = 0, name_end = 0, value_end = 0;
  ends[0] = name_ends[0] = value_ends[0] = 0;
  for (int64_t i = 0; i < count; i++) {
    void *headers;
    if (used.headers(items[i].message, &headers) == 0) {
      const char *name;
      const void *value;
      size_t size;
      for (size_t index = 0; used.header_at(headers, index, &name, &value, &size) == 0; index++) {
        size_t length = strlen(name);
        memcpy(names + name_end, name, length);
        name_end += (int32_t)length;
        if (value) {
          memcpy(values + value_end, value, size);
          value_end += (int32_t)size;
          value_valid[entries >> 3] |= (uint8_t)(1u << (entries & 7));
        }
        entries++;
        name_ends[entries] = name_end;
        value_ends[entries] = value_end;
      }
    }
    if (entries > ends[i]) valid[i >> 3] |= (uint8_t)(1u << (i & 7));
    ends[i + 1] = entries;
  }
}

void forebay_destroy(const item *items, int64_t count) {
  for (int64_t i = 0; i < count; i++) used.destroy(items[i].event);
}
