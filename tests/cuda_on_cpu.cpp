// The machine behind cuda_on_cpu.h: runs the blocks of a launch one after another and every CUDA
// thread of a block as a fiber, so that barriers, votes and shuffles really meet.
// A fiber runs one thread after another until a thread has to wait; only then is another fiber
// taken. A kernel without barriers is therefore a plain loop over its threads.
#define CUDA_ON_CPU_RUNTIME
#include "cuda_on_cpu.h"

#include <cstdarg>
#include <dlfcn.h>
#include <memory>
#include <numeric>
#include <sys/mman.h>
#include <unordered_map>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if !defined(__x86_64__) || defined(CUDA_ON_CPU_UCONTEXT)
#define CUDA_ON_CPU_UCONTEXT
#include <ucontext.h>
#endif

uint3 threadIdx, blockIdx, blockDim, gridDim;
#if !defined(CUDA_ON_CPU_UCONTEXT)
extern "C" void cuda_on_cpu_switch(void** from, void* to);
#endif

#if defined(CUDA_ON_CPU_CHECKED)
constexpr bool CHECKED = true;
#else
constexpr bool CHECKED = false;
#endif
constexpr unsigned char POISON = 0xA5;
constexpr size_t SHARED_LIMIT = 227 * 1024, CANARY = 1024;
alignas(1024) unsigned char shared[SHARED_LIMIT + CANARY];

namespace cuda_on_cpu {
namespace {

// ---- contexts: a stack and a place on it ----
constexpr size_t STACK = 256 * 1024, GUARD = 4096;

struct Context {
    unsigned char* stack = nullptr;  // null for the stack that launch() was called on
#if defined(CUDA_ON_CPU_UCONTEXT)
    ucontext_t place;
#else
    void* place = nullptr;
#endif
    const void* bottom = nullptr;  // what AddressSanitizer has to know of a stack
    size_t size = 0;
    void* fake_stack = nullptr;
};

#if !defined(CUDA_ON_CPU_UCONTEXT)
// It ends in a jump, because a return to another stack is always predicted wrongly.
asm(R"(
    .text
    .hidden cuda_on_cpu_switch
    .globl cuda_on_cpu_switch
    .type cuda_on_cpu_switch, @function
cuda_on_cpu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmp *%rcx
    .size cuda_on_cpu_switch, .-cuda_on_cpu_switch
)");
#endif

Context launcher;

void arrived([[maybe_unused]] void* fake_stack) {
#if defined(__SANITIZE_ADDRESS__)
    const void* bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(fake_stack, &bottom, &size);
    if (!launcher.bottom) launcher.bottom = bottom, launcher.size = size;
#endif
}

void switch_context(Context& from, Context& to) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&from.fake_stack, to.bottom, to.size);
#endif
#if defined(CUDA_ON_CPU_UCONTEXT)
    swapcontext(&from.place, &to.place);
#else
    cuda_on_cpu_switch(&from.place, to.place);
#endif
    arrived(from.fake_stack);
}

void prepare(Context& context, size_t colour, void (*entry)()) {
    if (!context.stack) {
        void* memory = mmap(nullptr, GUARD + STACK, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) std::abort();
        mprotect(memory, GUARD, PROT_NONE);  // a stack that overflows faults
        context.stack = static_cast<unsigned char*>(memory) + GUARD;
    }
    // Stacks start at different cache sets, else a thousand fibers fight for a few of them.
    const size_t size = STACK - colour % 32 * 128;
    context.bottom = context.stack;
    context.size = size;
    context.fake_stack = nullptr;
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(context.stack, STACK);
#endif
#if defined(CUDA_ON_CPU_UCONTEXT)
    getcontext(&context.place);
    context.place.uc_stack.ss_sp = context.stack;
    context.place.uc_stack.ss_size = size;
    context.place.uc_link = nullptr;
    makecontext(&context.place, entry, 0);
#else
    void** top = reinterpret_cast<void**>(context.stack + size);
    *--top = nullptr;  // where entry's return address would be; aligns the stack
    *--top = reinterpret_cast<void*>(entry);
    context.place = top - 6;  // six registers
#endif
}

// ---- a launch ----
enum Order { FORWARD, REVERSE, RANDOM };

struct Region {
    uint64_t low, high, writable;
};
struct Launch {
    unsigned grid[3], block[3], shared_bytes, order;
    uint64_t seed;
    unsigned flush_subnormals, region_count;
    const Region* regions;
    uint64_t chosen_count;
    const uint64_t* chosen;  // run only these blocks, unless null
};

enum State { READY, AT_BLOCK_BARRIER, AT_WARP_BARRIER, EXITED };

struct Thread {
    State state;
    Context* fiber;
    uint3 index;
    int line;  // of the barrier it waits at
    int vote;
    unsigned mask;
    int source;
    Combine combine;
    uint64_t value;
    // For the race detector: accesses up to `time` are before the thread's last barrier.
    unsigned time;
    // Of the lanes of its warp, what this thread is ordered after; else all threads of a block
    // would not fit into the nearest cache.
    unsigned known[CHECKED ? 32 : 1];
};

const Kernel* kernel;
const Launch* launch;
void** arguments;
std::vector<Thread> threads;
std::vector<unsigned> order;
size_t started, visited;  // how many of the order have begun, and had their turn in this round
bool any_ready;           // in this round
Thread* current;
int votes;
uint64_t block_number, random_state;
std::vector<std::unique_ptr<Context>> fibers;
std::vector<Context*> idle;
Context* starting;
char error[1024];
bool failed;
unsigned now, all_known;  // the detector's clock, and its value at the last block barrier

unsigned random_below(unsigned n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return unsigned((random_state >> 32) * n >> 32);
}

[[gnu::format(printf, 1, 2)]] void report(const char* format, ...) {
    va_list values;
    va_start(values, format);
    std::vsnprintf(error, sizeof error, format, values);
    va_end(values);
    failed = true;
}

void arrange() {  // the order in which the threads of a block are visited
    if (launch->order == RANDOM)
        for (unsigned i = unsigned(order.size()); i > 1; --i)
            std::swap(order[i - 1], order[random_below(i)]);
}

void begin(Thread& thread) {
    thread.state = READY;
    thread.time = now;
    if (CHECKED) std::memset(thread.known, 0, sizeof thread.known);
}

void run_threads(Context& self) {
    while (started < order.size()) {
        current = &threads[order[started++]];
        begin(*current);
        current->fiber = &self;
        threadIdx = current->index;
        kernel->run(arguments);
        current->state = EXITED;
    }
}

void fiber_main() {
    arrived(nullptr);
    Context& self = *starting;
    for (;;) {
        run_threads(self);
        idle.push_back(&self);
        switch_context(self, launcher);
    }
}

Thread* next_ready() {
    while (visited < order.size()) {
        Thread& thread = threads[order[visited++]];
        if (thread.state != READY) continue;
        any_ready = true;
        if (launch->order == RANDOM && random_below(4) == 0) continue;  // falls behind
        return &thread;
    }
    return nullptr;
}

void resume(Context& from, Thread& thread) {
    current = &thread;
    threadIdx = thread.index;
    switch_context(from, *thread.fiber);
}

void wait(State state, int line) {
    Thread& self = *current;
    self.state = state;
    self.line = line;
    if (Thread* next = next_ready()) resume(*self.fiber, *next);  // not by way of the launcher
    else switch_context(*self.fiber, launcher);
}

void start_threads() {
    while (started < order.size()) {
        if (idle.empty()) {
            fibers.push_back(std::make_unique<Context>());
            prepare(*fibers.back(), fibers.size(), fiber_main);
            idle.push_back(fibers.back().get());
        }
        starting = idle.back();
        idle.pop_back();
        switch_context(launcher, *starting);
        if (failed) return;
    }
}

bool resume_threads() {
    arrange();
    visited = 0;
    any_ready = false;
    while (Thread* thread = next_ready()) {
        resume(launcher, *thread);
        if (failed) return false;
    }
    return any_ready;
}

template <class Visit>
void for_lanes(Thread* warp, unsigned mask, Visit visit) {
    for (; mask; mask &= mask - 1) {
        const int lane = __builtin_ctz(mask);
        visit(lane, warp[lane]);
    }
}

// Only __syncwarp orders memory accesses; votes and shuffles do not.
void order_accesses(Thread* warp, unsigned mask) {
    unsigned known[32] = {};
    for_lanes(warp, mask, [&](int lane, Thread& thread) {
        for (int other = 0; other < 32; ++other)
            known[other] = std::max(known[other], thread.known[other]);
        known[lane] = std::max(known[lane], thread.time);
    });
    ++now;
    for_lanes(warp, mask, [&](int, Thread& thread) {
        std::memcpy(thread.known, known, sizeof known);
        thread.time = now;
    });
}

void release(Thread* warp, unsigned mask) {
    Thread& first = warp[__builtin_ctz(mask)];
    if (first.combine) {
        uint64_t combined = first.value;
        for_lanes(warp, mask & (mask - 1), [&](int, Thread& thread) {
            combined = first.combine(combined, thread.value);
        });
        for_lanes(warp, mask, [&](int, Thread& thread) { thread.value = combined; });
    } else if (first.source >= 0) {
        uint64_t values[32];
        std::memset(values, POISON, sizeof values);  // what a lane outside the mask hands out
        for_lanes(warp, mask, [&](int lane, Thread& thread) { values[lane] = thread.value; });
        for_lanes(warp, mask, [&](int, Thread& thread) { thread.value = values[thread.source]; });
    } else if (CHECKED) {
        order_accesses(warp, mask);
    }
    for_lanes(warp, mask, [](int, Thread& thread) { thread.state = READY; });
}

// Whether every lane of the mask has come to the same place with the same mask.
bool have_met(const Thread* warp, unsigned mask) {
    const Thread& first = warp[__builtin_ctz(mask)];
    for (; mask; mask &= mask - 1) {
        const Thread& thread = warp[__builtin_ctz(mask)];
        if (thread.state != AT_WARP_BARRIER || thread.mask != first.mask ||
            thread.line != first.line)
            return false;
    }
    return true;
}

bool release_warps() {
    bool any = false;
    for (size_t start = 0; start < threads.size(); start += 32) {
        Thread* warp = &threads[start];
        const unsigned size = unsigned(std::min<size_t>(32, threads.size() - start));
        const unsigned present = ~0u >> (32 - size);
        for (unsigned lane = 0; lane < size; ++lane) {
            const unsigned mask = warp[lane].mask & present;
            if (warp[lane].state == AT_WARP_BARRIER && have_met(warp, mask))
                release(warp, mask), any = true;
        }
    }
    return any;
}

bool release_block() {
    votes = 0;
    for (const Thread& thread : threads) {
        if (thread.state != AT_BLOCK_BARRIER || thread.line != threads[0].line) return false;
        votes += thread.vote;
    }
    all_known = now++;
    for (Thread& thread : threads) {
        thread.state = READY;
        thread.time = now;
    }
    return true;
}

void report_divergence() {
    int count[4] = {}, line[4] = {};
    bool lines = false;
    for (const Thread& thread : threads) {
        if (count[thread.state]++ && thread.line != line[thread.state])
            lines |= thread.state != EXITED;
        line[thread.state] = thread.line;
    }
    report("divergence in block (%u, %u, %u) of %zu threads: %d wait at a block barrier (line %d), "
           "%d at a warp primitive (line %d), %d exited%s",
           blockIdx.x, blockIdx.y, blockIdx.z, threads.size(), count[AT_BLOCK_BARRIER],
           line[AT_BLOCK_BARRIER], count[AT_WARP_BARRIER], line[AT_WARP_BARRIER], count[EXITED],
           lines ? "; not all at the same line" : "");
}

bool all_exited() {
    for (const Thread& thread : threads)
        if (thread.state != EXITED) return false;
    return true;
}

void check_canary() {
    for (size_t i = 0; i < CANARY; ++i)
        if (shared[launch->shared_bytes + i] != POISON) {
            report("block (%u, %u, %u) wrote shared memory byte %zu of %u", blockIdx.x, blockIdx.y,
                   blockIdx.z, launch->shared_bytes + i, launch->shared_bytes);
            return;
        }
}

void run_block(uint64_t block) {
    const uint3 grid = gridDim;
    block_number = block;
    blockIdx = {unsigned(block % grid.x), unsigned(block / grid.x % grid.y),
                unsigned(block / grid.x / grid.y)};
    std::memset(shared, POISON, launch->shared_bytes);
    started = 0;
    visited = order.size();  // while threads begin, none is resumed
    now = 1;
    all_known = 0;
    arrange();
    start_threads();
    if (!failed && idle.size() != fibers.size()) {  // some thread waits
        do {
            while (!failed && resume_threads()) {
            }
        } while (!failed && (release_warps() || release_block()));
        if (!failed && !all_exited()) report_divergence();
    }
#if !defined(__SANITIZE_ADDRESS__)
    if (!failed) check_canary();
#endif
}

void run_blocks() {
    const uint64_t total = launch->chosen ? launch->chosen_count
                                          : uint64_t(gridDim.x) * gridDim.y * gridDim.z;
    uint64_t step = 1, first = 0;
    if (launch->order == RANDOM) {
        first = random_state % total;
        step = random_state / 3 % total | 1;
        while (std::gcd(step, total) != 1) ++step;
    }
    for (uint64_t i = 0; i < total && !failed; ++i) {
        const uint64_t k = launch->order == REVERSE
                               ? total - 1 - i
                               : uint64_t(((unsigned __int128)i * step + first) % total);
        run_block(launch->chosen ? launch->chosen[k] : k);
    }
}

void prepare_threads() {
    const size_t count = size_t(blockDim.x) * blockDim.y * blockDim.z;
    threads.resize(count);
    order.resize(count);
    for (unsigned t = 0; t < count; ++t) {
        threads[t].index = {t % blockDim.x, t / blockDim.x % blockDim.y,
                            t / blockDim.x / blockDim.y};
        order[t] = launch->order == REVERSE ? unsigned(count) - 1 - t : t;
    }
}

void reset_fibers() {  // after a failure, threads are left in the middle of a kernel
    idle.clear();
    for (size_t i = 0; i < fibers.size(); ++i) {
        prepare(*fibers[i], i, fiber_main);
        idle.push_back(fibers[i].get());
    }
}

struct FlushSubnormals {  // as -ftz=true does for float32, while a launch runs
#if defined(__x86_64__)
    unsigned before = _mm_getcsr();
    FlushSubnormals() {
        if (launch->flush_subnormals) _mm_setcsr(before | 0x8040);
    }
    ~FlushSubnormals() { _mm_setcsr(before); }
#endif
};

void poison_shared([[maybe_unused]] bool poison) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(shared, sizeof shared);
    if (poison)
        __asan_poison_memory_region(shared + launch->shared_bytes,
                                    sizeof shared - launch->shared_bytes);
#else
    std::memset(shared + launch->shared_bytes, POISON, CANARY);
#endif
}

void forget_accesses();

}  // namespace

void fail(const char* format, ...) {
    char text[800];
    va_list values;
    va_start(values, format);
    std::vsnprintf(text, sizeof text, format, values);
    va_end(values);
    report("block (%u, %u, %u), thread (%u, %u, %u): %s", blockIdx.x, blockIdx.y, blockIdx.z,
           threadIdx.x, threadIdx.y, threadIdx.z, text);
    switch_context(*current->fiber, launcher);
    std::abort();
}

int lane() { return int(current - threads.data()) & 31; }

int block_barrier(int vote, int line) {
    current->vote = vote;
    wait(AT_BLOCK_BARRIER, line);
    return votes;
}

static uint64_t meet(unsigned mask, uint64_t value, int source, Combine combine, int line) {
    if (!(mask >> lane() & 1)) fail("line %d: the mask %#x lacks its own lane", line, mask);
    Thread& self = *current;
    self.mask = mask;
    self.value = value;
    self.source = source;
    self.combine = combine;
    wait(AT_WARP_BARRIER, line);
    return self.value;
}
void warp_barrier(unsigned mask, int line) { meet(mask, 0, -1, nullptr, line); }
uint64_t warp_exchange(unsigned mask, uint64_t value, int source, int line) {
    return meet(mask, value, source & 31, nullptr, line);
}
uint64_t warp_combine(unsigned mask, uint64_t value, Combine combine, int line) {
    return meet(mask, value, 0, combine, line);
}

}  // namespace cuda_on_cpu

// Returns null or what went wrong.
extern "C" const char* cuda_on_cpu_launch(
    const cuda_on_cpu::Kernel* kernel, const cuda_on_cpu::Launch* launch, void** arguments) {
    using namespace cuda_on_cpu;
    cuda_on_cpu::kernel = kernel;
    cuda_on_cpu::launch = launch;
    cuda_on_cpu::arguments = arguments;
    gridDim = {launch->grid[0], launch->grid[1], launch->grid[2]};
    blockDim = {launch->block[0], launch->block[1], launch->block[2]};
    random_state = launch->seed * 0x9E3779B97F4A7C15u + 1;
    failed = false;
    launcher.bottom = nullptr;
    prepare_threads();
    forget_accesses();
    poison_shared(true);
    {
        [[maybe_unused]] FlushSubnormals flush;
        run_blocks();
    }
    poison_shared(false);
    if (failed) reset_fibers();
    return failed ? error : nullptr;
}

#if !defined(CUDA_ON_CPU_CHECKED)
namespace cuda_on_cpu {
void atomic_access(void*, int) {}
namespace {
void forget_accesses() {}
}  // namespace
}  // namespace cuda_on_cpu
#else
// ---- checked builds ----
// The kernel is compiled with -fsanitize=thread,undefined, whose calls arrive here instead of in
// the sanitizers' own libraries. Every byte of the argument arrays and of shared memory remembers
// its last write and reads; two accesses conflict unless a barrier orders them.
namespace cuda_on_cpu {
namespace {

struct Access {
    const void* place;
    unsigned block, time;
    unsigned short thread;
    bool atomic, valid;
};
struct Byte {
    Access write, reads[2];
};
constexpr uint64_t PAGE = 1024;
std::unordered_map<uint64_t, std::unique_ptr<Byte[]>> pages;
uint64_t last_page = ~0ull;
Byte* last_bytes;

void forget_accesses() {
    pages.clear();
    last_page = ~0ull;
}

Byte& remembered(uint64_t address) {
    if (address / PAGE != last_page) {
        last_page = address / PAGE;
        auto& page = pages[last_page];
        if (!page) page.reset(new Byte[PAGE]());
        last_bytes = page.get();
    }
    return last_bytes[address % PAGE];
}

bool ordered(const Access& past, const Access& access) {
    if (past.block != access.block) return false;
    if (past.thread == access.thread || past.time <= all_known) return true;
    return past.thread / 32 == access.thread / 32 && past.time <= current->known[past.thread % 32];
}

// Python turns <0x...>, an address in the module, into file:line.
unsigned place_in_module(const void* address) {
    Dl_info info;
    if (!dladdr(address, &info)) return 0;
    return unsigned(static_cast<const char*>(address) - static_cast<char*>(info.dli_fbase)) - 1;
}

bool is_constant(const void* pointer) {  // a table in the kernel's own module
    Dl_info module, place;
    return dladdr(reinterpret_cast<void*>(kernel->run), &module) && dladdr(pointer, &place) &&
           place.dli_fbase == module.dli_fbase;
}

struct Span {
    const char* name;
    uint64_t low;
    bool is_shared;
};

[[noreturn]] void fail_race(const Access& past, const Access& access, const Span& span,
                            uint64_t address, const char* before, const char* here) {
    fail("race on %s byte %llu: %s at <%#x> conflicts with %s by thread %u of block number %u at "
         "<%#x>; no barrier is between them",
         span.name, (unsigned long long)(address - span.low), here, place_in_module(access.place),
         before, unsigned(past.thread), past.block, place_in_module(past.place));
}

void remember(uint64_t address, const Access& access, bool write, const Span& span) {
    Byte& byte = remembered(address);
    if (span.is_shared && byte.write.block != access.block) byte = Byte();
    const auto conflicts = [&](const Access& past) {
        return past.valid && !(past.atomic && access.atomic) && !ordered(past, access);
    };
    if (span.is_shared && !write && !byte.write.valid)
        fail("read of shared memory byte %llu at <%#x>, which nobody wrote",
             (unsigned long long)(address - span.low), place_in_module(access.place));
    if (conflicts(byte.write))
        fail_race(byte.write, access, span, address, "a write", write ? "a write" : "a read");
    if (!write) {
        // Two concurrent readers are kept, of different warps where there are such: a later write
        // that is ordered after both is ordered after all (but for barriers of part of a warp).
        Access& first = byte.reads[0];
        Access& second = byte.reads[1];
        if (!first.valid || ordered(first, access)) first = access;
        else if (!second.valid || ordered(second, access)) second = access;
        else if (second.thread / 32 == first.thread / 32) second = access;
        return;
    }
    for (Access& read : byte.reads) {
        if (conflicts(read)) fail_race(read, access, span, address, "a read", "a write");
    }
    byte.write = access;
}

bool is_local(const void* pointer) {
    const auto stack = reinterpret_cast<uint64_t>(current->fiber->stack);
    return reinterpret_cast<uint64_t>(pointer) - stack < STACK;
}

const void* caller;
void check(const void* pointer, uint64_t size, bool write, bool atomic) {
    const uint64_t address = reinterpret_cast<uint64_t>(pointer);
    if (is_local(pointer)) return;
    Span span = {"shared memory", reinterpret_cast<uint64_t>(shared), true};
    const char* what = write ? "write" : "read";
    if (address - span.low < sizeof shared) {
        if (address + size > span.low + launch->shared_bytes)
            fail("%s of shared memory byte %llu of %u at <%#x>", what,
                 (unsigned long long)(address - span.low), launch->shared_bytes,
                 place_in_module(caller));
    } else {
        const Region* region = launch->regions;
        const Region* end = region + launch->region_count;
        while (region != end && !(address >= region->low && address + size <= region->high))
            ++region;
        if (region == end) {
            if (!write && is_constant(pointer)) return;
            fail("%s of %llu bytes outside every array at <%#x>", what, (unsigned long long)size,
                 place_in_module(caller));
        }
        if (write && !region->writable)
            fail("write to a read-only array at <%#x>", place_in_module(caller));
        if (!region->writable) return;  // nothing to race with
        span = {"global memory", region->low, false};
    }
    const auto thread = static_cast<unsigned short>(current - threads.data());
    const Access access = {caller, unsigned(block_number), current->time, thread, atomic, true};
    for (uint64_t i = 0; i < size; ++i) remember(address + i, access, write, span);
}

// A local struct of 16 bytes is copied as one access, though its members need less alignment; UBSan
// sees what is misaligned for its own type.
void check_aligned(const void* pointer, uint64_t size, bool write) {
    if (reinterpret_cast<uint64_t>(pointer) % size && !is_local(pointer))
        fail("%s of %llu bytes at <%#x> is misaligned", write ? "write" : "read",
             (unsigned long long)size, place_in_module(caller));
    check(pointer, size, write, false);
}

}  // namespace

void atomic_access(void* address, int size) {
    caller = __builtin_return_address(0);
    check(address, uint64_t(size), true, true);
}
}  // namespace cuda_on_cpu

#define CALLBACK extern "C" void
#define ACCESS(NAME, CHECK, SIZE, WRITE)                         \
    CALLBACK NAME(void* pointer) {                               \
        cuda_on_cpu::caller = __builtin_return_address(0);       \
        cuda_on_cpu::CHECK(pointer, SIZE, WRITE);                \
    }
#define ACCESSES(SIZE)                                      \
    ACCESS(__tsan_read##SIZE, check_aligned, SIZE, false)   \
    ACCESS(__tsan_write##SIZE, check_aligned, SIZE, true)
ACCESSES(1) ACCESSES(2) ACCESSES(4) ACCESSES(8) ACCESSES(16)
CALLBACK __tsan_read_range(void* pointer, uint64_t size) {
    cuda_on_cpu::caller = __builtin_return_address(0);
    cuda_on_cpu::check(pointer, size, false, false);
}
CALLBACK __tsan_write_range(void* pointer, uint64_t size) {
    cuda_on_cpu::caller = __builtin_return_address(0);
    cuda_on_cpu::check(pointer, size, true, false);
}
CALLBACK __tsan_init() {}

struct SourceLocation {  // every handler's data starts with it
    const char* file;
    unsigned line, column;
};
#define REPORTED(HANDLER, TEXT)                                                              \
    CALLBACK __ubsan_handle_##HANDLER(const SourceLocation* at) {                            \
        cuda_on_cpu::fail("%s at %s:%u:%u", TEXT, at->file, at->line, at->column);           \
    }
#define UNDEFINED(HANDLER, TEXT) REPORTED(HANDLER##_abort, TEXT)
UNDEFINED(add_overflow, "signed integer overflow in an addition")
UNDEFINED(sub_overflow, "signed integer overflow in a subtraction")
UNDEFINED(mul_overflow, "signed integer overflow in a multiplication")
UNDEFINED(negate_overflow, "signed integer overflow in a negation")
UNDEFINED(divrem_overflow, "division by zero or overflow")
UNDEFINED(shift_out_of_bounds, "shift out of bounds")
UNDEFINED(out_of_bounds, "array index out of bounds")
UNDEFINED(float_cast_overflow, "conversion of a floating point value out of range")
UNDEFINED(load_invalid_value, "load of a value that its type does not have")
UNDEFINED(type_mismatch_v1, "misaligned or null pointer")
UNDEFINED(pointer_overflow, "pointer overflow")
UNDEFINED(invalid_builtin, "zero passed to a bit count")
UNDEFINED(nonnull_arg, "null argument")
REPORTED(builtin_unreachable, "unreachable code reached")
REPORTED(missing_return, "function without a return value")
UNDEFINED(vla_bound_not_positive, "array of no elements")
#endif
