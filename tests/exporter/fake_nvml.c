/* A library that answers as NVIDIA's driver does, from a script: the tests' GPUs. fake_nvml.py builds it and writes the script.
 *
 * The file that FAKE_NVML names has lines "key value"; it is read again whenever it was replaced, so that GPUs may change, go and come
 * while a process looks at them. What a key lacks is "not supported"; a value "!15" is NVML's return code 15.
 *
 *   count 2                  GPUs; init !9: there is no driver; hang 1: every call waits until that line is gone
 *   0.power @hang            this call waits, @crash: it ends the process by SIGSEGV; likewise init, wait, count and 0.handle
 *   0.uuid GPU-...           also name, pci; 0.handle !15: no handle is given; 0.all !15: whatever is asked of it
 *   0.memory_used 1024       and so on: see the functions below
 *   0.field.145.0 1          field 145, scope 0
 *   0.link.3 1               state of an NVLink
 *   0.mig 1, 0.mig.0 MIG-... MIG mode and the instances
 *   wait !15                 what waiting for events gives
 *
 * The file that FAKE_NVML_EVENTS names only grows: "GPU type data times", an event each, type 8 for an XID. A set of events hears what was
 * written since it was made.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SUCCESS 0
#define UNINITIALIZED 1
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define TIMEOUT 10
#define INSUFFICIENT_SIZE 7

#define MOST_GPUS 16
#define MOST_MIGS 8

typedef struct {
    char key[64];
    char value[96];
} Entry;

typedef struct {
    int gpu;
    int mig; /* -1: the whole GPU */
} Device;

typedef struct {
    unsigned int field, scope;
    long long timestamp, latency;
    unsigned int type;
    int result;
    union {
        double real;
        unsigned long long whole;
    } value;
} FieldValue;

typedef struct {
    Device *device;
    unsigned long long type, data;
    unsigned int gpu_instance, compute_instance;
} Event;

typedef struct {
    long offset;
    unsigned long long registered[MOST_GPUS];
    Event next;
    long times;
} EventSet;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Device devices[MOST_GPUS], migs[MOST_GPUS][MOST_MIGS];
static Entry *entries;
static size_t size;
static struct stat seen;
static int initialised;

static int by_key(const void *one, const void *other) {
    return strcmp(((const Entry *)one)->key, ((const Entry *)other)->key);
}

static void load(void) {
    const char *path = getenv("FAKE_NVML");
    struct stat now;
    if (!path || stat(path, &now) ||
        (now.st_ino == seen.st_ino && now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec))
        return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    char line[256];
    size_t room = 64;
    free(entries);
    entries = malloc(room * sizeof(Entry));
    for (size = 0; fgets(line, sizeof line, file);) {
        if (size == room) entries = realloc(entries, (room *= 2) * sizeof(Entry));
        if (sscanf(line, "%63s %95[^\n]", entries[size].key, entries[size].value) == 2) size++;
    }
    fclose(file);
    qsort(entries, size, sizeof(Entry), by_key);
    seen = now;
}

static const char *find(const char *key) {
    Entry wanted;
    snprintf(wanted.key, sizeof wanted.key, "%s", key);
    Entry *found = bsearch(&wanted, entries, size, sizeof(Entry), by_key);
    return found ? found->value : NULL;
}

/* Before every answer; waits while the script says that the driver hangs. */
static void enter(void) {
    for (;;) {
        pthread_mutex_lock(&lock);
        load();
        if (!find("hang")) return;
        pthread_mutex_unlock(&lock);
        usleep(5000);
    }
}

static int leave(int result) {
    pthread_mutex_unlock(&lock);
    return result;
}

static int code(const char *value) { return value == NULL ? NOT_SUPPORTED : value[0] == '!' ? atoi(value + 1) : SUCCESS; }

/* The value of a key; waits, letting others in, while it says that this one call hangs, and ends the process where it says so. */
static const char *answer(const char *key) {
    const char *value;
    if ((value = find(key)) && strcmp(value, "@crash") == 0) raise(SIGSEGV);
    while ((value = find(key)) && strcmp(value, "@hang") == 0) {
        pthread_mutex_unlock(&lock);
        usleep(5000);
        pthread_mutex_lock(&lock);
        load();
    }
    return value;
}

/* What the script says of a GPU; the return code. */
static int look(const Device *device, const char *name, const char **value) {
    char key[64];
    if (!initialised) return UNINITIALIZED;
    if (!device) return INVALID_ARGUMENT;
    snprintf(key, sizeof key, "%d.all", device->gpu);
    const char *all = find(key);
    if (all) return code(all);
    if (device->mig < 0)
        snprintf(key, sizeof key, "%d.%s", device->gpu, name);
    else
        snprintf(key, sizeof key, "%d.mig.%d%s%s", device->gpu, device->mig, strcmp(name, "uuid") ? "." : "", strcmp(name, "uuid") ? name : "");
    *value = answer(key);
    return code(*value);
}

static int text(const Device *device, const char *name, char *into, unsigned int room) {
    const char *value;
    enter();
    int result = look(device, name, &value);
    if (result == SUCCESS && strlen(value) >= room) result = INSUFFICIENT_SIZE;
    if (result == SUCCESS) strcpy(into, value);
    return leave(result);
}

static int number(const Device *device, const char *name, unsigned int *into) {
    const char *value;
    enter();
    int result = look(device, name, &value);
    if (result == SUCCESS) *into = strtoul(value, NULL, 10);
    return leave(result);
}

static int big(const Device *device, const char *name, unsigned long long *into) {
    const char *value;
    enter();
    int result = look(device, name, &value);
    if (result == SUCCESS) *into = strtoull(value, NULL, 10);
    return leave(result);
}

/* The library. */

int nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    enter();
    const char *value = answer("init");
    int result = value ? code(value) : SUCCESS;
    for (int gpu = 0; gpu < MOST_GPUS; gpu++) {
        devices[gpu] = (Device){gpu, -1};
        for (int mig = 0; mig < MOST_MIGS; mig++) migs[gpu][mig] = (Device){gpu, mig};
    }
    initialised += result == SUCCESS;
    return leave(result);
}

int nvmlShutdown(void) {
    enter();
    if (!initialised) return leave(UNINITIALIZED);
    initialised--;
    return leave(SUCCESS);
}

const char *nvmlErrorString(int result) {
    (void)result;
    return "an error of the fake library";
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
    enter();
    const char *value = answer("count");
    if (!initialised) return leave(UNINITIALIZED);
    if (code(value) == SUCCESS) *count = strtoul(value, NULL, 10);
    return leave(code(value));
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device **device) {
    char key[64];
    enter();
    if (!initialised) return leave(UNINITIALIZED);
    if (index >= MOST_GPUS) return leave(INVALID_ARGUMENT);
    snprintf(key, sizeof key, "%u.handle", index);
    const char *value = answer(key);
    *device = &devices[index];
    return leave(value ? code(value) : SUCCESS);
}

int nvmlDeviceGetUUID(Device *device, char *uuid, unsigned int room) { return text(device, "uuid", uuid, room); }
int nvmlDeviceGetName(Device *device, char *name, unsigned int room) { return text(device, "name", name, room); }

int nvmlDeviceGetPciInfo_v3(Device *device, char *info) {
    memset(info, 0, 68);
    return text(device, "pci", info + 36, 32); /* behind the old address, 16 bytes, and five numbers */
}

int nvmlDeviceGetMemoryInfo(Device *device, unsigned long long *total_free_used) {
    int result = big(device, "memory_total", &total_free_used[0]);
    if (result == SUCCESS) result = big(device, "memory_used", &total_free_used[2]);
    total_free_used[1] = total_free_used[0] - total_free_used[2];
    return result;
}

int nvmlDeviceGetUtilizationRates(Device *device, unsigned int *gpu_memory) {
    gpu_memory[1] = 0;
    return number(device, "utilization", &gpu_memory[0]);
}

int nvmlDeviceGetTemperature(Device *device, unsigned int sensor, unsigned int *degrees) {
    return sensor ? INVALID_ARGUMENT : number(device, "temperature", degrees);
}

int nvmlDeviceGetPowerUsage(Device *device, unsigned int *power) { return number(device, "power", power); }
int nvmlDeviceGetEnforcedPowerLimit(Device *device, unsigned int *limit) { return number(device, "power_limit", limit); }

int nvmlDeviceGetClockInfo(Device *device, unsigned int type, unsigned int *megahertz) {
    return number(device, type == 1 ? "clock_sm" : type == 2 ? "clock_memory" : "clock_other", megahertz);
}

int nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *reasons) { return big(device, "throttle", reasons); }
int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *reasons) {
    return big(device, "throttle_by_its_old_name", reasons);
}

int nvmlDeviceGetNvLinkState(Device *device, unsigned int link, unsigned int *state) {
    char name[32];
    snprintf(name, sizeof name, "link.%u", link);
    return number(device, name, state);
}

int nvmlDeviceGetFieldValues(Device *device, int count, FieldValue *values) {
    char name[48];
    const char *value;
    enter();
    int result = look(device, "uuid", &value);
    for (int at = 0; result == SUCCESS && at < count; at++) {
        snprintf(name, sizeof name, "field.%u.%u", values[at].field, values[at].scope);
        values[at].result = look(device, name, &value);
        if (values[at].result) continue;
        values[at].type = strchr(value, '.') ? 0 : 3;
        if (values[at].type)
            values[at].value.whole = strtoull(value, NULL, 10);
        else
            values[at].value.real = strtod(value, NULL);
    }
    return leave(result);
}

int nvmlDeviceGetMigMode(Device *device, unsigned int *now, unsigned int *pending) {
    *pending = 0;
    return number(device, "mig", now);
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned int *count) {
    (void)device;
    *count = MOST_MIGS - 1;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned int index, Device **mig) {
    char uuid[96];
    *mig = &migs[device->gpu][index];
    return text(*mig, "uuid", uuid, sizeof uuid) == SUCCESS ? SUCCESS : 6;
}

/* Events. */

int nvmlDeviceGetSupportedEventTypes(Device *device, unsigned long long *types) { return big(device, "events", types); }

int nvmlEventSetCreate(EventSet **set) {
    struct stat file;
    const char *path = getenv("FAKE_NVML_EVENTS");
    *set = calloc(1, sizeof(EventSet));
    (*set)->offset = path && stat(path, &file) == 0 ? file.st_size : 0;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(Device *device, unsigned long long types, EventSet *set) {
    set->registered[device->gpu] |= types;
    return SUCCESS;
}

int nvmlEventSetFree(EventSet *set) {
    free(set);
    return SUCCESS;
}

/* The next event that somebody wants and that is written whole. */
static int next(EventSet *set, Event *event) {
    const char *path = getenv("FAKE_NVML_EVENTS");
    struct stat now;
    int more = !set->times && path && stat(path, &now) == 0 && now.st_size > set->offset;
    FILE *file = more ? fopen(path, "r") : NULL;
    char line[128];
    if (file && fseek(file, set->offset, SEEK_SET) == 0)
        while (!set->times && fgets(line, sizeof line, file) && strchr(line, '\n')) {
            unsigned int gpu;
            set->offset = ftell(file);
            if (sscanf(line, "%u %llu %llu %ld", &gpu, &set->next.type, &set->next.data, &set->times) == 4)
                set->next.device = &devices[gpu];
            if (!(set->registered[gpu] & set->next.type)) set->times = 0;
        }
    if (file) fclose(file);
    if (!set->times) return 0;
    set->times--;
    *event = set->next;
    return 1;
}

int nvmlEventSetWait_v2(EventSet *set, Event *event, unsigned int milliseconds) {
    for (unsigned int waited = 0;; waited += 50) {
        enter();
        const char *value = answer("wait");
        int result = !initialised ? UNINITIALIZED : value ? code(value) : next(set, event) ? SUCCESS : TIMEOUT;
        leave(result);
        if (result != TIMEOUT || waited >= milliseconds) return result;
        usleep(50000);
    }
}
