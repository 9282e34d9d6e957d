// The interpreter as a kernel: one CTA for each threadblock of the ranks that this GPU holds.
#include "abi.h"
#include "platform_cuda.h"
#include "interpreter.h"

extern "C" __global__ void __launch_bounds__(512) synth_run(const Params* params) {
  __shared__ Params shared;
  for (int k = threadIdx.x; k < int(sizeof(Params) / 8); k += blockDim.x) ((long long*)&shared)[k] = ((const long long*)params)[k];
  __syncthreads();
  Lane lane = {int(threadIdx.x), int(blockDim.x), 0, 0, &shared, int(shared.first_block) + int(blockIdx.x)};
  Interpreter(shared, lane).run();
}

// After it, where the average is wanted: row y of the grid divides one rank's output.
extern "C" __global__ void synth_divide(const Params* params, int first_rank) {
  i64 first = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  divide_outputs(*params, first_rank + int(blockIdx.y), first, i64(gridDim.x) * blockDim.x);
}
