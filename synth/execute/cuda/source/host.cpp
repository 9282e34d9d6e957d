// The interpreter on a CPU: `synth_run` starts a thread for every lane of every threadblock and watches over them.
#include <chrono>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "abi.h"
#include "platform_host.h"
#include "interpreter.h"

bool Lane::give_up(unsigned polls, const Waiting& waiting) {
  if (aborted()) return true;
  if (polls < 16) return false;
  if (!watched) {
    __atomic_store_n(&watch->kind, Flag(waiting.kind), __ATOMIC_RELAXED);
    __atomic_store_n(&watch->address, Flag(waiting.address), __ATOMIC_RELAXED);
    __atomic_store_n(&watch->goal, Flag(waiting.goal), __ATOMIC_RELAXED);
    __atomic_add_fetch(&watch->epoch, 1, __ATOMIC_ACQ_REL);
    watched = true;
  }
  if (polls < 64) {
    sched_yield();
  } else {
    timespec pause = {0, polls < 128 ? 20000 : 100000};
    nanosleep(&pause, nullptr);
  }
  return false;
}

bool Lane::barrier_or(bool value) {
  if (count == 1) return value;
  Flag phase = load_acquire(&meeting->phase);
  if (value) __atomic_store_n(&meeting->any[phase & 1], Flag(1), __ATOMIC_RELAXED);
  if (__atomic_add_fetch(&meeting->arrived, 1, __ATOMIC_ACQ_REL) == Flag(count)) {
    __atomic_store_n(&meeting->arrived, Flag(0), __ATOMIC_RELAXED);
    __atomic_store_n(&meeting->any[(phase + 1) & 1], Flag(0), __ATOMIC_RELAXED);
    store_release(&meeting->phase, phase + 1);
  } else {
    Waiting waiting = {KIND_BARRIER, block, &meeting->phase, phase + 1};
    for (unsigned polls = 0; load_acquire(&meeting->phase) <= phase; ++polls)
      if (give_up(polls, waiting)) return true;
    resume();
  }
  return __atomic_load_n(&meeting->any[phase & 1], __ATOMIC_RELAXED) != 0;
}

namespace {

struct Crew {
  const Params& p;
  int lanes;
  std::unique_ptr<Watch[]> watches;
  std::unique_ptr<Meeting[]> meetings;

  Crew(const Params& params, int count)
      : p(params), lanes(count), watches(new Watch[params.num_blocks * count]), meetings(new Meeting[params.num_blocks]) {}

  int size() const { return int(p.num_blocks) * lanes; }

  void work(int number) {
    int block = number / lanes;
    Watch& watch = watches[number];
    Lane lane = {number % lanes, lanes, 0, 0, &p, int(p.first_block) + block, &watch, &meetings[block], false};
    Interpreter(p, lane).run();
    store_release(&watch.done, 1);
  }

  bool all_done() const {
    for (int k = 0; k < size(); ++k)
      if (!load_acquire(&watches[k].done)) return false;
    return true;
  }

  // Whether nothing can ever go on. Between the two looks at the epochs nobody runs who is not through, so that memory stands
  // still while the waits are compared with it. Where other processes have a part, they may still write: `alone` says that none has.
  bool deadlocked() const {
    std::vector<Flag> epochs(size());
    int waiting = 0;
    for (int k = 0; k < size(); ++k) {
      if (load_acquire(&watches[k].done)) continue;
      epochs[k] = load_acquire(&watches[k].epoch);
      if (epochs[k] % 2 == 0) return false;
      ++waiting;
    }
    for (int k = 0; k < size(); ++k) {
      if (load_acquire(&watches[k].done)) continue;
      const Watch& watch = watches[k];
      const u64* address = (const u64*)__atomic_load_n(&watch.address, __ATOMIC_RELAXED);
      Waiting wait = {int(__atomic_load_n(&watch.kind, __ATOMIC_RELAXED)), 0, address,
                      __atomic_load_n(&watch.goal, __ATOMIC_RELAXED)};
      u64 seen = load_acquire(address);
      if (wait.over(seen) && !(wait.kind == KIND_LINE && !wait.over(load_acquire(address + 1)))) return false;
    }
    for (int k = 0; k < size(); ++k)
      if (!load_acquire(&watches[k].done) && load_acquire(&watches[k].epoch) != epochs[k]) return false;
    return waiting > 0;
  }

  // 0 once all is done; 1 after a deadlock, or after `limit_s` where other processes have a part and nobody can tell one for certain.
  int watch(double limit_s, bool alone) const {
    auto start = std::chrono::steady_clock::now();
    for (long pause_us = 50; !all_done(); pause_us = pause_us < 2000 ? pause_us * 2 : pause_us) {
      std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
      std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
      if (alone ? deadlocked() : passed.count() > limit_s) {
        if (all_done()) return 0;
        store_release((Flag*)p.abort, 1);
        return 1;
      }
    }
    return 0;
  }
};

}  // namespace

// 0: done; 1: hung, and `stuck` says who waits for what; 2: the system has no more threads.
extern "C" int synth_run(const Params* params, int lanes, double limit_s, int alone) {
  const Params& p = *params;
  Crew crew(p, lanes);
  std::vector<std::thread> threads;
  int result = 0;
  try {
    for (int k = 0; k < crew.size(); ++k) threads.emplace_back([&crew, k] { crew.work(k); });
  } catch (const std::system_error&) {
    store_release((Flag*)p.abort, 1);
    result = 2;
  }
  if (!result) result = crew.watch(limit_s, alone != 0);
  for (std::thread& thread : threads) thread.join();
  if (!result && p.op == OP_AVG)
    for (i64 k = 0; k < p.num_blocks; ++k) {
      const i32* row = (const i32*)p.blocks + (p.first_block + k) * BLOCK_COLUMNS;
      if (k == 0 || row[BLOCK_RANK] != row[BLOCK_RANK - BLOCK_COLUMNS]) divide_outputs(p, row[BLOCK_RANK], 0, 1);
    }
  return result;
}
