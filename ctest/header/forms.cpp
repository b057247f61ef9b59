// Every class of the C++ headers in both forms, so that the compiler sees all of their functions: those of a template are
// only looked at when they are used. wrapped.sh shows that none is left out.
#include "nanomc.hpp"

template class nmc::BasicBlockRun<nmc::Returning>;
template class nmc::BasicBlockTicket<nmc::Returning>;
template class nmc::BasicBlocks<nmc::Returning>;
template class nmc::BasicCalls<nmc::Returning>;
template class nmc::BasicClient<nmc::Returning>;
template class nmc::BasicEp<nmc::Returning>;
template class nmc::BasicEpCallGroup<nmc::Returning>;
template class nmc::BasicKvCache<nmc::Returning>;
template class nmc::BasicKvPin<nmc::Returning>;
template class nmc::BasicKvSequence<nmc::Returning>;
template class nmc::BasicLog<nmc::Returning>;
template class nmc::BasicMaster<nmc::Returning>;
template class nmc::BasicPinSlot<nmc::Returning>;
template class nmc::BasicStaged<nmc::Returning>;
template class nmc::BasicStore<nmc::Returning>;
template class nmc::BasicTier<nmc::Returning>;
template class nmc::BasicView<nmc::Returning>;
template class nmc::BasicWorld<nmc::Returning>;
template class nmc::BasicWritePlan<nmc::Returning>;

#if NMC_HPP_EXCEPTIONS
template class nmc::BasicBlockRun<nmc::Throwing>;
template class nmc::BasicBlockTicket<nmc::Throwing>;
template class nmc::BasicBlocks<nmc::Throwing>;
template class nmc::BasicCalls<nmc::Throwing>;
template class nmc::BasicClient<nmc::Throwing>;
template class nmc::BasicEp<nmc::Throwing>;
template class nmc::BasicEpCallGroup<nmc::Throwing>;
template class nmc::BasicKvCache<nmc::Throwing>;
template class nmc::BasicKvPin<nmc::Throwing>;
template class nmc::BasicKvSequence<nmc::Throwing>;
template class nmc::BasicLog<nmc::Throwing>;
template class nmc::BasicMaster<nmc::Throwing>;
template class nmc::BasicPinSlot<nmc::Throwing>;
template class nmc::BasicStaged<nmc::Throwing>;
template class nmc::BasicStore<nmc::Throwing>;
template class nmc::BasicTier<nmc::Throwing>;
template class nmc::BasicView<nmc::Throwing>;
template class nmc::BasicWorld<nmc::Throwing>;
template class nmc::BasicWritePlan<nmc::Throwing>;
#endif

// -DFORM=nmc: without exceptions this form is not there, and the compiler says what to use.
#ifndef FORM
#define FORM nmc::nothrow
#endif
auto make() { return FORM::Blocks::create(nmc::BlocksConfig(4)); }
